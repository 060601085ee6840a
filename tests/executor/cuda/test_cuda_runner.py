"""The GPU's lane in its two threads, behind the product's shell, on a device of queues: loading, failures, losses."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.device import FakeDevice, FakeEvent
from fakes.device_bench import Drive, reference
from fakes.plain_operations import make_plain_operations
from fakes.shell_drive import ShellDrive
from fakes.tiny_weights import write_tiny_weights
from structlog.testing import capture_logs

from noria.proto.execution import Failure, Geometry
from noria.proto.sampling import Sampling
from noria.services.executor.config import ExecutorConfig
from noria.services.executor.cuda import backend
from noria.services.executor.cuda.backend import choose_operations
from noria.services.executor.cuda.cuda_runner import CudaModelRunner
from noria.services.executor.cuda.device.streams import Device, DeviceLostError
from noria.services.executor.cuda.device.torch_device import open_device
from noria.services.executor.cuda.loading import load
from noria.services.executor.plan.limits import ExecutorLimits
from noria.services.scheduler.core.interface.settings import CoreSettings
from noria.shared.config.config import ModelSettings
from noria.shared.errors import UserError
from noria.shared.telemetry.instruments import DEVICE_STEPS, DEVICE_UNRECORDED


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_weights(tmp_path_factory.mktemp("models") / "tiny")


def config(model: Path, **changes: Any) -> ExecutorConfig:
    values: dict[str, Any] = {
        "max_slots": 6,
        "max_batch_tokens": 48,
        "page_size": 4,
        "num_blocks": 64,
        "max_memory_percent": 0.5,
        "threads": None,
        "device": "cuda",
        "q_padding_interval_size": 8,
        "kv_padding_interval_size": 32,
        "graphs_max": 12,
    }
    named = ModelSettings(name=str(model), dtype="float32", max_model_tokens=160)
    return ExecutorConfig(model=named, **{**values, **changes})


def drive(settings: ExecutorConfig, device: Device) -> ShellDrive:
    return ShellDrive(
        lambda wake: CudaModelRunner(lambda tell: load(settings, device, make_plain_operations, tell), wake),
        CoreSettings(max_batch_tokens=48, max_requests_per_batch=6, steps_in_flight=2),
    )


def asked(seed: int) -> list[tuple[tuple[int, ...], Sampling]]:
    chance = random.Random(seed)
    kinds = (
        {"temperature": 0.0},
        {"temperature": 0.0, "repetition_penalty": 1.4, "presence_penalty": 0.5},
        {"temperature": 0.9, "top_p": 0.9, "logprobs": 2},
        {"temperature": 1.0, "frequency_penalty": 0.4, "logit_bias": ((7, 3.0),)},
    )
    return [
        (
            tuple(chance.randrange(2, 96) for _ in range(chance.randrange(1, 60))),
            Sampling(seed=number, max_tokens=chance.randrange(4, 25), ignore_eos=True, **kinds[number % 4]),  # type: ignore[arg-type]
        )
        for number in range(8)
    ]


def shape_of(geometry: Geometry) -> ExecutorLimits:
    names = ("max_slots", "max_batch_tokens", "max_model_tokens", "page_size", "num_blocks", "vocabulary", "groups")
    return ExecutorLimits(*(getattr(geometry, name) for name in names))


@pytest.mark.parametrize("seed", range(3))
def test_a_lane_in_threads_gives_the_processors_tokens_whatever_is_sampled(model: Path, seed: int) -> None:
    device = FakeDevice(seed)
    lane = drive(config(model), device)
    geometry = lane.load()
    found = lane.run(geometry, asked(seed))
    lane.close()
    engine = reference(model, shape_of(geometry))
    want = Drive(shape_of(geometry)).run(engine, asked(seed))
    assert engine.agrees(found, want)
    assert device.captures and device.replays > 4


def test_loading_sizes_the_cache_by_what_the_largest_step_took_and_records_the_common_shapes(model: Path) -> None:
    told: list[tuple[str, int, int]] = []
    device = FakeDevice(0)
    settings = config(model, num_blocks=None, host_gib=0.001)
    pipeline, loaded = load(settings, device, make_plain_operations, lambda *progress: told.append(progress))
    assert [each[1:] for each in told] == [(done, len(told)) for done in range(len(told))] and len(told) == 4
    shares = {share.name: share.bytes for share in loaded.memory.shares}
    assert shares["activations"] == 1 << 20  # what the device says it was
    assert shares["cache"] == pipeline.engine.pool.data.nbytes and shares["weights"] > 0
    assert shares["input buffers"] == pytest.approx(pipeline.buffer_bytes, rel=0.01)
    assert loaded.geometry.host_slots > 0 and loaded.geometry.device == "cpu"
    assert "4 graphs" in loaded.kernels and not loaded.batch_invariant


def test_a_step_that_does_not_fit_is_told_and_planned_smaller(model: Path) -> None:
    device = FakeDevice(1)
    lane = drive(config(model, graphs_max=0), device)
    geometry = lane.load()
    device.trouble = [None, MemoryError("2 GiB wanted")]
    found = lane.run(geometry, asked(1))
    lane.close()
    assert [(each.failure, each.detail) for each in lane.failures] == [(Failure.MEMORY, "2 GiB wanted")]
    engine = reference(model, shape_of(geometry))
    assert engine.agrees(found, Drive(shape_of(geometry)).run(engine, asked(1)))


def test_a_step_that_raises_ends_its_epoch_and_nothing_else(model: Path) -> None:
    device = FakeDevice(2)
    lane = drive(config(model), device)
    geometry = lane.load()
    device.trouble = [None, None, None, ValueError("a bad step")]
    lane.run(geometry, asked(2))
    lane.close()
    assert [each.failure for each in lane.failures] == [Failure.ERROR]
    assert "ValueError: a bad step" in lane.failures[0].detail


def test_a_lost_device_stops_the_process(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lane = drive(config(model), FakeDevice(3))
    geometry = lane.load()

    def lose(event: FakeEvent) -> None:
        raise DeviceLostError("an illegal memory access was encountered")

    monkeypatch.setattr(FakeEvent, "wait", lose)
    lane.run(geometry, asked(3))
    assert lane.stopped and "illegal memory access" in lane.shell.lost_device
    lane.close()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_error_says_what_to_do() -> None:
    with pytest.raises(UserError, match=r"executor.device is cuda.*--device cpu"):
        open_device()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"kernels": "avx2"}, "executor.kernels avx2 is of processors"),
        ({"kernels": "reference"}, "executor.kernels reference is of processors.*auto or triton"),
        ({"num_blocks": 10}, "raise --num-blocks to at least 42"),
    ],
)
def test_what_a_gpu_does_not_do_is_said_when_it_is_asked_for(model: Path, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=named):
        load(config(model, **changes), FakeDevice(0), choose_operations)


@pytest.mark.parametrize("kernels", ["auto", "triton"])
def test_without_triton_the_start_is_refused_with_what_to_install(
    model: Path, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "installed", lambda name: name != "triton")
    with pytest.raises(UserError, match=r"Triton, which is not installed: pip install 'noria\[cuda\]'"):
        load(config(model, kernels=kernels), FakeDevice(0), choose_operations)


def test_how_steps_were_computed_is_told_in_metrics_and_a_refusal_once_in_the_log(model: Path) -> None:
    for refuses, ways in ((False, {"eager", "capture", "replay"}), (True, {"eager"})):
        device = FakeDevice(4)
        lane = drive(config(model), device)
        geometry = lane.load()
        device.refuses = refuses
        with capture_logs() as logs:
            lane.run(geometry, asked(4))
            lane.close()
        values = list(lane.shell.metrics.values())
        found = {dict(each.attributes)["noria.way"] for each in values if each.metric is DEVICE_STEPS}
        # Common shapes were recorded before anything was refused.
        assert found - {"replay"} == ways - {"replay"}
        assert any(each.metric is DEVICE_UNRECORDED for each in values) == refuses
        assert sum(each["event"] == "no graph" for each in logs) == int(refuses)
