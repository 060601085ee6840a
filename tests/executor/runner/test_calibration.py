"""How many prompt tokens a step should have follows from measured steps, and is measured once."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from noria.proto.execution import Group
from noria.services.executor.plan.batch import Batch
from noria.services.executor.plan.limits import ExecutorLimits
from noria.services.executor.plan.sampling_metadata import SamplerOutput
from noria.services.executor.runner.calibration import (
    SECONDS_MAX,
    PrefillAdvice,
    StepTimeProfile,
    calibrated,
    calibration_key,
    decodes_measured,
    measure,
)

SHAPE = ExecutorLimits(
    max_slots=64, max_batch_tokens=512, max_model_tokens=2048, page_size=16, num_chunks=4000, vocabulary=50
)


class FakeRunner:
    """Takes as long for a batch as `seconds` says, on a clock of its own."""

    def __init__(self, seconds: Callable[[int, int], float], shape: ExecutorLimits = SHAPE) -> None:
        self.shape = shape
        self.steps = 0
        self.now_s = 100.0
        self._seconds = seconds

    def run(self, batch: Batch) -> SamplerOutput | None:
        """Spend the time of a batch of so many query tokens and slices."""
        self.steps += 1
        self.now_s += self._seconds(len(batch.token_ids), len(batch.slices.starts))
        return None

    def clock(self) -> float:
        """Now."""
        return self.now_s


def linear(tokens: int, slices: int) -> float:
    """10 ms and 0.6 ms a prompt token; a step of decodes takes 40 ms."""
    return 0.040 if slices > 1 else 0.010 + 0.0006 * tokens


def paced(runner: FakeRunner) -> StepTimeProfile:
    measured = measure(runner, runner.clock)
    assert measured is not None
    pace = measured.pace()
    assert pace is not None
    return pace


def test_a_step_with_decodes_gets_the_prompt_tokens_that_triple_its_length() -> None:
    runner = FakeRunner(linear)
    pace = paced(runner)
    assert pace.decodes_us == pytest.approx(40_000)
    assert pace.prompts[0] == (64, pytest.approx(48_400))
    assert pace.advice().beside == 128  # 80 ms of 0.6 ms each are 133 tokens: the multiple of 16 below


def test_a_step_with_few_decodes_may_take_four_times_as_long_as_one_with_many() -> None:
    pace = StepTimeProfile(30_000.0, tuple((tokens, 10_000 + 600.0 * tokens) for tokens in (64, 128, 256)))
    assert (pace.advice().beside, pace.advice().few) == (96, 192)  # 120 ms of 0.6 ms each are 200 tokens


@pytest.mark.parametrize(
    ("step_s", "token_s", "expected"), [(0.0, 0.001, 64), (0.010, 0.0006, 256), (0.005, 0.0008, 128)]
)
def test_a_step_without_decodes_gets_the_fewest_tokens_that_are_nearly_as_cheap_as_any(
    step_s: float, token_s: float, expected: int
) -> None:
    pace = StepTimeProfile(40_000.0, tuple((tokens, 1e6 * (step_s + token_s * tokens)) for tokens in (64, 128, 256)))
    assert pace.advice().alone == expected


def test_a_model_with_few_slots_is_measured_and_advised_with_as_many_decodes_as_it_has() -> None:
    decodes: set[int] = set()

    def seconds(tokens: int, slices: int) -> float:
        decodes.add(slices)
        return linear(tokens, slices)

    shape = msgspec.structs.replace(SHAPE, max_slots=8)
    runner = FakeRunner(seconds, shape)
    assert measure(runner, runner.clock) is not None
    assert decodes == {1, 8} == {1, decodes_measured(shape)}


def test_the_least_of_several_rounds_counts() -> None:
    rounds = [9.0, 3.0, 1.0, 2.0, 1.1, 1.5]
    disturbed = iter([factor for factor in rounds for _ in range(4)])
    runner = FakeRunner(lambda tokens, slices: linear(tokens, slices) * next(disturbed) / 10)
    pace = paced(runner)
    assert pace.decodes_us == pytest.approx(4_000)


def test_a_machine_too_busy_to_be_measured_gets_the_defaults_and_adds_to_it_at_the_next_start(tmp_path: Path) -> None:
    slower, path = 1.0, tmp_path / "float32.pace"

    def seconds(tokens: int, slices: int) -> float:
        nonlocal slower
        slower *= 1.2
        return linear(tokens, slices) * slower

    busy, calm, again = FakeRunner(seconds), FakeRunner(linear), FakeRunner(linear)
    assert calibrated(busy, path, "key", busy.clock) == PrefillAdvice()
    assert busy.now_s < 100.0 + 2 * SECONDS_MAX
    assert (
        calibrated(calm, path, "key", calm.clock)
        == calibrated(again, path, "key", again.clock)
        == PrefillAdvice(256, 128, 256)
    )
    assert calm.steps > again.steps == 0


def test_two_starts_that_measured_once_each_agree_with_each_other(tmp_path: Path) -> None:
    path = tmp_path / "float32.pace"

    def once(tokens: int, slices: int, counted: list[int]) -> float:
        counted[0] += 1
        return linear(tokens, slices) * (0.1 if 4 < counted[0] <= 8 else 0.1 * counted[0])

    for expected in (PrefillAdvice(), PrefillAdvice(256, 128, 256)):
        counted = [0]
        runner = FakeRunner(lambda tokens, slices, counted=counted: once(tokens, slices, counted))
        assert calibrated(runner, path, "key", runner.clock) == expected


def test_measuring_a_slow_model_ends() -> None:
    runner = FakeRunner(lambda tokens, slices: 100 * linear(tokens, slices))
    measured = measure(runner, runner.clock)
    assert measured is not None and measured.pace() is None
    assert runner.steps <= 2


@pytest.mark.parametrize(
    "shape",
    [
        ExecutorLimits(
            max_slots=4, max_batch_tokens=40, max_model_tokens=64, page_size=16, num_chunks=8, vocabulary=50
        ),
        ExecutorLimits(
            max_slots=4, max_batch_tokens=512, max_model_tokens=4096, page_size=16, num_chunks=20, vocabulary=50
        ),
    ],
)
def test_a_model_without_room_for_the_steps_is_not_measured(shape: ExecutorLimits) -> None:
    runner = FakeRunner(linear, shape)
    advice = calibrated(runner, None, "", runner.clock)
    assert 0 < advice.beside <= advice.few <= advice.alone <= shape.max_batch_tokens


def test_sliding_groups_are_measured_within_their_rings() -> None:
    groups = (Group(0, 2, 3), Group(32, 3, 2, ring_pages=35))
    runner = FakeRunner(
        linear,
        ExecutorLimits(
            max_slots=64, max_batch_tokens=512, max_model_tokens=2048, page_size=16, num_chunks=900, vocabulary=50,
            groups=groups,
        ),
    )  # fmt: skip
    assert measure(runner, runner.clock) is not None


def test_a_pace_is_kept_and_read_again(tmp_path: Path) -> None:
    path, key = tmp_path / "new" / "float32.pace", calibration_key(b"{}", SHAPE, "portable")
    first, again = FakeRunner(linear), FakeRunner(linear)
    advice = calibrated(first, path, key, first.clock)
    assert advice == PrefillAdvice(256, 128, 256)
    assert calibrated(again, path, key, again.clock) == advice
    assert again.steps == 0
    calibrated(again, path, calibration_key(b"{}", SHAPE, "avx2"), again.clock)
    assert again.steps > 0


def test_a_damaged_or_unwritable_file_only_costs_time(tmp_path: Path) -> None:
    damaged, short, blocked = tmp_path / "float32.pace", tmp_path / "short.pace", tmp_path / "file" / "float32.pace"
    damaged.write_bytes(b"{")
    short.write_bytes(b'{"key": "key", "measured": {"prompts": [64], "least_us": []}}')
    blocked.parent.write_text("")
    for path in (damaged, short, blocked):
        runner = FakeRunner(linear)
        assert calibrated(runner, path, "key", runner.clock) == PrefillAdvice(256, 128, 256)
        assert runner.steps > 0
