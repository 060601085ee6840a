"""A device's step reads nothing back, so that it can be recorded: no operation of torch in it gives the host a number."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from executor.numerics.driving import Asked, Driver, Way
from executor.numerics.test_families import EXPERTS, build
from torch.utils._python_dispatch import TorchDispatchMode

from noria.proto.sampling import Sampling
from noria.services.executor.cuda.device.step_inputs import StepInputs
from noria.services.executor.cuda.device.step_outputs import StepOutputs
from noria.services.executor.cuda.layers.linear import DeviceLinearFactory
from noria.services.executor.kv_cache.layer_groups import layer_groups
from noria.services.executor.model.architecture import architecture
from noria.services.executor.model.checkpoint import Checkpoint
from noria.services.executor.model.decoder import Decoder
from noria.services.executor.plan.sampling_metadata import SamplerOutput, SamplingMetadata

pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("one_thread")

READING = ("_local_scalar_dense", "item", "nonzero", "masked_select", "bincount", "unique", "equal", "is_nonzero")
"""Operations whose result, or its size, the host waits for."""

ASKING = ("tolist", "numpy", "item", "__bool__", "__int__", "__float__", "__index__")
"""How else a tensor is asked for numbers: on a processor no operation shows that."""


class NothingRead(TorchDispatchMode):
    """Fails on what the host would wait for."""

    def __torch_dispatch__(  # type: ignore[no-untyped-def]
        self, func, types: Sequence[type], args: tuple[object, ...] = (), kwargs: Mapping[str, object] | None = None
    ):
        assert not any(func.__name__.split(".")[0].startswith(each) for each in READING), func
        return func(*args, **(kwargs or {}))


@contextmanager
def nothing_read() -> Iterator[None]:
    def refuse(*_: object) -> None:
        raise AssertionError("the host asks for numbers")

    with pytest.MonkeyPatch.context() as patch, NothingRead():
        for name in ASKING:
            patch.setattr(torch.Tensor, name, refuse)
        yield


def test_a_step_of_a_mixture_and_its_sampling_read_nothing_back(tmp_path: Path) -> None:
    from executor.numerics.on_device import OnDevice, Samples, sampled

    class Quiet:
        def __init__(self, inner: Samples) -> None:
            self._inner = inner

        def sample(self, logits: torch.Tensor, step: StepInputs, out: StepOutputs) -> None:
            with nothing_read():
                self._inner.sample(logits, step, out)

    class Unread(OnDevice):
        """Runs what the device does under the mode."""

        def layers(self, layers, x):  # type: ignore[no-untyped-def]
            with nothing_read():
                return super().layers(layers, x)

        def sample(self, logits: torch.Tensor, sampler: SamplingMetadata) -> SamplerOutput:
            return sampled(Quiet(self._operations), self._all, self._step, sampler)

    build("Qwen3Moe", {**EXPERTS, "num_hidden_layers": 1, "hidden_size": 64, "vocab_size": 80}, tmp_path)
    facts = architecture(tmp_path)
    linear_factory = DeviceLinearFactory(torch.float32, torch.device("cpu"))
    decoder = Decoder(facts, Checkpoint(tmp_path), torch.float32, 512, 32, linear_factory)
    driver = Driver(decoder, Way(num_blocks=40), 128)
    engine = driver.engine
    places = layer_groups(facts.windows, engine.shape.max_model_tokens)
    engine._operations = Unread(facts, engine.shape, engine.cache, places, torch.float32, 2)
    sampling = Sampling(seed=1, max_tokens=3, repetition_penalty=1.2, logit_bias=((3, 1.0),), logprobs=2, top_p=0.9)
    (answer,) = driver.run([Asked((3, 4, 5, 6), sampling)])
    assert len(answer.ids) == 3


def test_what_reads_is_found() -> None:
    with pytest.raises(AssertionError), nothing_read():
        torch.ones(3).sum().item()
    with pytest.raises(AssertionError), nothing_read():
        torch.ones(3).nonzero()
    with pytest.raises(AssertionError), nothing_read():
        torch.ones(3).tolist()
