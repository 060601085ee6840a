"""All services and clients in one process, from seeds: `make simulate` runs more of them."""

import functools
from collections import Counter

import pytest
from fakes.simulated.faults import planted_adoption_bugs
from fakes.simulated.faults.planted_bugs import FAULTS
from fakes.simulated.seed_runs import FAULT_KINDS, repeat_command, run_seed
from fakes.simulated.simulation import StackSimulation

from noria.proto.base import Service

SEEDS = 300
_BLOCK = 20
_SEEDS_FOR_A_FAULT = 200
_SEEDS_OF_SCHEDULERS = 20
_SEEDS_OF_PLAGUE = 15

_once = functools.cache(run_seed)


@pytest.mark.parametrize("block", range(SEEDS // _BLOCK))
def test_every_accepted_request_comes_to_its_one_right_end_whatever_dies(block: int) -> None:
    for seed in range(block * _BLOCK, (block + 1) * _BLOCK):
        _, problem, _ = _once(seed)
        assert not problem, f"seed {seed}: {problem}\n{repeat_command(seed)}"


def test_every_kind_of_trouble_happens() -> None:
    total = Counter[str]()
    for seed in range(SEEDS):
        total += _once(seed)[2]
    assert not [kind for kind in FAULT_KINDS if not total[kind]]


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_noticed(name: str) -> None:
    # What is wrong with a takeover shows sooner where schedulers die and nothing else happens.
    kinds = (None, Service.SCHEDULER) if name in planted_adoption_bugs.FAULTS else (None,)
    with FAULTS[name]():
        noticed = next(
            (seed for seed in range(_SEEDS_FOR_A_FAULT) if any(run_seed(seed, only)[1] for only in kinds)), None
        )
    assert noticed is not None, f"{_SEEDS_FOR_A_FAULT} seeds did not notice: {name}"
    print(f"{name}: noticed at seed {noticed}")


def test_a_seed_gives_the_same_run_again() -> None:
    traces: list[list[str]] = [[], []]
    for trace in traces:
        StackSimulation(7, trace=trace.append).run()
    assert traces[0] == traces[1]
    assert len(traces[0]) > 100


def test_a_scheduler_that_dies_repeats_no_prefill_and_loses_no_token_that_it_held_back() -> None:
    adopted = held = 0
    for seed in range(_SEEDS_OF_SCHEDULERS):
        simulation = StackSimulation(seed, only=Service.SCHEDULER)
        simulation.run()
        adopted += simulation.counts["adopted"]
        held += simulation.counts["tokens held at a death"]
        assert not simulation.repeated(), f"seed {seed}: computed again: {simulation.repeated()}"
    assert adopted > _SEEDS_OF_SCHEDULERS
    assert held


@pytest.mark.parametrize(
    "mourners", [(Service.SCHEDULER,), (Service.SCHEDULER, Service.ADMISSION)], ids=["scheduler", "both"]
)
def test_who_kills_executors_is_found_though_the_scheduler_dies_after_each_of_them(
    mourners: tuple[Service, ...],
) -> None:
    found = 0
    for seed in range(_SEEDS_OF_PLAGUE):
        simulation = StackSimulation(seed, poison_only=mourners)
        simulation.run()
        counts = simulation.counts
        assert counts["poison"] <= 12 * max(counts["end: error"], 1), f"seed {seed}: {counts}"
        found += counts["end: error"]
    assert found > _SEEDS_OF_PLAGUE
