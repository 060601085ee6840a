"""Threads that do not get a core of their own hold nobody up for longer than a step."""

import os
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from executor.numerics.comparison import LEVELS, decoder_of
from executor.numerics.driving import Asked, Driver, Way

from noria.proto.sampling import Sampling
from noria.services.executor.cpu.engine import CpuEngine
from noria.services.executor.plan.batch import Batch
from noria.services.executor.plan.sampling_metadata import SamplerOutput

pytestmark = [
    pytest.mark.skipif(not LEVELS, reason="the kernels are not built"),
    pytest.mark.skipif(sys.platform != "linux", reason="threads are bound to cores as Linux does it"),
]
LAYERS, STEPS = 24, 8
# Waiting for the system's scheduler at each of a step's loops takes some 400 ms here and more; computing takes 1.
STEP_S_MAX = 0.15


@pytest.fixture
def one_core() -> Iterator[None]:
    """All threads of this process on one core, whoever else is there."""

    def bind(cores: set[int]) -> None:
        for thread in Path("/proc/self/task").iterdir():
            os.sched_setaffinity(int(thread.name), cores)

    before = os.sched_getaffinity(0)
    bind({min(before)})
    yield
    bind(before)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=300, num_hidden_layers=LAYERS, **sizes)).save_pretrained(tmp_path)
    return tmp_path


def test_two_threads_on_one_core_compute_a_step_without_waiting_for_each_other_at_every_loop(
    model: Path, one_core: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    took: list[float] = []
    run = CpuEngine.run

    def timed(engine: CpuEngine, batch: Batch) -> SamplerOutput | None:
        began_s = time.perf_counter()
        drawn = run(engine, batch)
        took.append(time.perf_counter() - began_s)
        return drawn

    monkeypatch.setattr(CpuEngine, "run", timed)
    driver = Driver(decoder_of(model, torch.float32, LEVELS[-1], threads=2), Way())
    driver.run([Asked((3, 1, 2), Sampling(temperature=0.0, max_tokens=STEPS))])
    assert statistics.median(took) < STEP_S_MAX, took
