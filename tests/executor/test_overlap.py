"""Step N + 1 is prepared while N computes, shown by what the shell records over a model runner of a set compute time."""

import json
from itertools import pairwise
from typing import Any

import pytest
from click.testing import CliRunner
from fakes.shell_drive import ShellDrive
from fakes.timed_runner import SimulatedRunner

from noria.cli.app import noria
from noria.proto.execution import Geometry, Group
from noria.proto.sampling import Sampling
from noria.services.executor.kv_cache.memory_plan import MemoryPlan, MemoryShare
from noria.services.executor.plan.limits import ExecutorLimits
from noria.services.executor.runner.loaded_model import LoadedModel
from noria.services.scheduler.core.interface.settings import CoreSettings
from noria.shared.telemetry.step_timeline import StepTiming, chrome_trace, measure_overlap

SHAPE = ExecutorLimits(
    max_slots=8, max_batch_tokens=64, max_model_tokens=200, page_size=16, num_chunks=120, vocabulary=50
)
GEOMETRY = Geometry("m", (Group(0, 1),), 120, 2, 16, 8, 64, 200, 50, "float32", "cpu")
LOADED = LoadedModel(SHAPE, GEOMETRY, 1, MemoryPlan(1, (MemoryShare("weights", 1),), 600, 3), 0.1, True)
COMPUTE_S = 0.2
STEPS = 12


def steps(in_flight: int) -> list[StepTiming]:
    drive = ShellDrive(
        lambda wake: SimulatedRunner(LOADED, COMPUTE_S, wake),
        CoreSettings(max_batch_tokens=64, max_requests_per_batch=8, steps_in_flight=in_flight),
    )
    geometry = drive.load()
    asked = [((5, 6, number), Sampling(temperature=0.0, max_tokens=STEPS, ignore_eos=True)) for number in range(6)]
    assert drive.run(geometry, asked) == [[9] * STEPS] * 6
    drive.close()
    return list(drive.shell.step_times)


def test_a_step_is_prepared_while_the_one_before_computes_and_lies_ready_when_that_ends() -> None:
    found = steps(2)
    met = measure_overlap(found)
    assert met.steps >= STEPS - 2
    # The first cannot be. Plans are made late on purpose: a machine that is busy elsewhere misses the end now and then.
    assert met.prepared > met.steps // 2 and met.ready > met.steps // 2
    # What is left is the hand-over from one to the next, which no step of this length notices.
    handed = [(one, other) for one, other in pairwise(found) if other.posted_ns <= one.ended_ns]
    gaps = sorted(other.began_ns - one.ended_ns for one, other in handed)
    assert gaps[len(gaps) // 2] < 0.1 * COMPUTE_S * 1e9


def test_with_one_step_in_flight_nothing_is_prepared_beside_the_compute() -> None:
    met = measure_overlap(steps(1))
    assert met.steps >= STEPS - 2
    assert met.prepared == met.ready == 0


def test_overlap_counts_only_steps_that_follow_each_other_in_an_epoch() -> None:
    def step(epoch: int, number: int, prepare: int, began: int, ended: int) -> StepTiming:
        return StepTiming(epoch, number, 1, 1, prepare, prepare + 1, began, began, ended, ended)

    inside, late, other = step(1, 2, 5, 20, 30), step(1, 3, 31, 40, 50), step(2, 1, 41, 60, 70)
    met = measure_overlap([step(1, 1, 0, 2, 10), inside, late, other])
    assert (met.steps, met.prepared, met.ready) == (2, 1, 1)
    assert met.idle == pytest.approx((10 + 10) / (18 + 20))


def test_the_picture_has_a_row_for_each_part_of_a_step() -> None:
    step = StepTiming(1, 7, 12, 3, 1_000_000, 1_200_000, 1_300_000, 2_000_000, 5_000_000, 5_100_000, "replay")
    events = chrome_trace([step])["traceEvents"]
    rows = {each["tid"]: each["args"]["name"] for each in events if each["ph"] == "M"}
    spans: dict[str, Any] = {rows[each["tid"]]: (each["ts"], each["dur"]) for each in events if each["ph"] == "X"}
    assert spans == {
        "host: prepare": (0, 200),
        "lane: ready": (200, 800),
        "device: compute": (1000, 3000),
        "host: result": (4000, 100),
    }
    assert next(each for each in events if each["ph"] == "X")["args"]["way"] == "replay"
    json.dumps(events)


def test_trace_wants_a_request_or_steps() -> None:
    done = CliRunner().invoke(noria, ["trace"])
    assert done.exit_code == 2 and "--steps" in done.output
