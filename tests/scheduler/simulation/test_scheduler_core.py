"""The scheduler core alone against an executor that keeps a true map of its cache, from seeds."""

import pytest
from fakes.faults import FAULTS
from fakes.world import World

from noria.services.scheduler.core.interface.events import SchedulerEvent
from noria.services.scheduler.core.scheduler import Scheduler


@pytest.mark.parametrize("block", range(10))
def test_every_stream_has_the_tokens_it_has_alone_and_everything_drains(block: int) -> None:
    for seed in range(block * 6, block * 6 + 6):
        world = World(seed)
        try:
            world.run()
            world.verify()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, {world.settings}: {error}") from error


@pytest.mark.parametrize("block", range(8))
def test_so_it_is_with_classes_and_tenants_whatever_the_rules_and_however_they_change(block: int) -> None:
    for seed in range(1000 + block * 6, 1000 + block * 6 + 6):
        world = World(seed, fair=True)
        try:
            world.run()
            world.verify()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, {world.settings}: {error}") from error


@pytest.mark.parametrize("core", FAULTS, ids=lambda core: core.__name__)
def test_a_planted_fault_is_noticed(core: type[Scheduler]) -> None:
    for seed in range(60):
        world = World(seed, core=core)
        try:
            world.run()
            world.verify()
        except (AssertionError, IndexError):
            return
    raise AssertionError(f"60 seeds did not notice {core.__doc__}")


@pytest.mark.parametrize("seed", range(6))
def test_a_recorded_event_log_gives_the_same_plans_again(seed: int) -> None:
    world = World(seed)
    world.run()
    again = Scheduler(world.settings)
    replayed = []
    for entry in world.log:
        if isinstance(entry, SchedulerEvent):
            again.apply(entry)
        elif (plan := again.plan(entry)) is not None:
            replayed.append(plan)
    assert replayed == world.plans
    assert len(replayed) > 50


def test_the_seeds_reach_all_that_can_happen() -> None:
    worlds = [World(seed) for seed in range(20)]
    for world in worlds:
        world.run()
    counted = [world.core.state.counters for world in worlds]
    assert sum(each.resets for each in counted) > 5
    assert sum(each.failed_steps for each in counted) > 5
    assert sum(each.discarded_slices for each in counted) > 5
    assert sum(each.reclaims for each in counted) > 5
    assert sum(each.swaps_in for each in counted) > 5
    assert sum(each.evictions for each in counted) > 5
    assert sum(each.hit_tokens for each in counted) > 50
    assert sum(each.recovered_tokens for each in counted) > 5
    assert sum(each.merged_pages for each in counted) > 5
    assert {bool(world.core.state.cache and world.core.state.cache.index) for world in worlds} == {True, False}
    assert {world.settings.policy for world in worlds} == {"fifo", "prefill_first"}
    assert {world.settings.steps_in_flight for world in worlds} == {1, 2}
