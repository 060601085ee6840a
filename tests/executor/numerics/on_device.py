"""The device's operations on a processor, by Triton's interpreter, where the reference's or the native ones would be."""

from collections.abc import Sequence
from typing import Protocol

import msgspec
import numpy as np
import torch

from noria.services.executor.cuda.device.step_inputs import StepInputs, host_buffer, inputs
from noria.services.executor.cuda.device.step_outputs import StepOutputs, drawn, output_bytes, outputs
from noria.services.executor.cuda.engine import DeviceOperations
from noria.services.executor.cuda.layers.layer_pages import layer_pages
from noria.services.executor.cuda.layout.step_layout import StepLayout
from noria.services.executor.cuda.layout.step_sizes import GroupSizes, StepSizes, needed
from noria.services.executor.cuda.triton.attention import TritonAttention
from noria.services.executor.cuda.triton.operations import TritonOperations
from noria.services.executor.kv_cache.paged_cache import KVCache
from noria.services.executor.model.architecture import Architecture
from noria.services.executor.model.expert_reads import ExpertReads
from noria.services.executor.model.linear_layers import Linear
from noria.services.executor.model.operations import DecoderLayer
from noria.services.executor.plan.batch import Batch
from noria.services.executor.plan.limits import ExecutorLimits, Integers
from noria.services.executor.plan.sampling_metadata import SamplerOutput, SamplingMetadata


class Samples(Protocol):
    """A part of `DeviceOperations`."""

    def sample(self, logits: torch.Tensor, step: StepInputs, out: StepOutputs) -> None: ...


class OnDevice:
    """`Operations` by those of a device. padding: how much larger than needed each size is."""

    def __init__(
        self,
        architecture: Architecture,
        shape: ExecutorLimits,
        cache: KVCache,
        places: Sequence[tuple[int, int]],
        dtype: torch.dtype,
        padding: int = 0,
        *,
        flashinfer: bool = False,
    ) -> None:
        self._shape, self._padding = shape, padding
        rows = [cache.rows(layer) for layer in range(len(places))]
        attention = None
        if flashinfer:
            from noria.services.executor.cuda.layers.flashinfer_attention import FlashInferAttention

            pages, groups = [layer_pages(each, cache.dtype) for each in rows], [group for group, _ in places]
            otherwise = TritonAttention(architecture, shape, pages, groups)
            attention = FlashInferAttention(architecture, shape, pages, groups, dtype, otherwise)
        self._operations: DeviceOperations = TritonOperations(
            architecture, shape, rows, places, dtype, cache.dtype, attention
        )

    @property
    def experts(self) -> ExpertReads:
        return self._operations.experts

    def begin(self, batch: Batch, rows: Integers | None) -> None:
        sampled = batch.sampler.rows if batch.sampler else None
        assert rows is sampled, "a device gives logits of sampled rows only"
        self._step = on_device(self._shape, batch, self._operations.tile_tokens, self._padding)
        self._rows = 0 if rows is None else len(rows)
        self._operations.plan(batch, self._step.sizes)
        self._operations.take(self._step)

    def embedded(self, table: torch.Tensor, scale: float) -> torch.Tensor:
        return self._operations.embedded(table, scale)

    def layers(self, layers: Sequence[DecoderLayer], x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self._operations.layers(layers, x)

    def linear(self, x: torch.Tensor, weight: Linear) -> torch.Tensor:
        return self._operations.linear(x, weight)

    def norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return self._operations.norm(x, weight)

    def add_norm(
        self, x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self._operations.add_norm(x, residual, weight)

    def rotate_write(
        self, layer: int, qkv: torch.Tensor, head_norms: tuple[torch.Tensor, torch.Tensor] | None
    ) -> torch.Tensor:
        if len(qkv) < self._step.sizes.tokens:  # given by hand, of real tokens only
            qkv = torch.cat((qkv, qkv.new_zeros(self._step.sizes.tokens - len(qkv), qkv.shape[1])))
        return self._operations.rotate_write(layer, qkv, head_norms)

    def place(self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return self._operations.place(layer, queries, keys, values)

    def attention(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        return self._operations.attention(layer, queries)

    def gated(self, gate_up: torch.Tensor) -> torch.Tensor:
        return self._operations.gated(gate_up)

    def logits(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, head: Linear) -> torch.Tensor:
        self._all = self._operations.logits(x, residual, weight, head)
        return self._all[: self._rows]

    def sample(self, logits: torch.Tensor, sampler: SamplingMetadata) -> SamplerOutput:
        del logits  # with padding
        return sampled(self._operations, self._all, self._step, sampler)


def sampled(device: Samples, logits: torch.Tensor, step: StepInputs, sampler: SamplingMetadata) -> SamplerOutput:
    """What a device samples, brought to the host."""
    buffer = torch.full((output_bytes(step.sizes),), 255, dtype=torch.uint8)
    with np.errstate(all="ignore"):  # the interpreter computes in numpy; infinities have their meaning here
        device.sample(logits, step, outputs(step.sizes, buffer))
    return drawn(step.sizes, buffer.numpy(), sampler)


def on_device(shape: ExecutorLimits, batch: Batch, tile_tokens: int, padding: int = 0) -> StepInputs:
    """A batch's inputs, each size larger than needed."""
    layout = StepLayout(shape, padded(needed(batch, tile_tokens), padding), tile_tokens)
    buffer = host_buffer(layout)
    buffer.copy_(torch.from_numpy(np.random.default_rng(0).integers(0, 256, layout.bytes, np.uint8)))
    layout.fill(buffer.numpy(), batch)
    return inputs(layout, buffer)


def padded(sizes: StepSizes, padding: int) -> StepSizes:
    if not padding:
        return sizes
    counts = ("tokens", "slices", "singles", "tiles", "samples", "counted", "history", "pending", "biases")
    return msgspec.structs.replace(
        sizes,
        **{name: getattr(sizes, name) + padding for name in counts},
        groups=tuple(GroupSizes(each.entries + padding, each.splits + padding) for each in sizes.groups),
    )
