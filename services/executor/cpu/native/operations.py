"""The operations by the native kernels: one call for consecutive dense layers, about nine for another layer.

The residual stream is float32, and so is what every product gives: norms, rotation and gates read float32 and round once,
to the model's dtype, what enters the next product, the cache or attention. In bfloat16 that is both nearer to the float32
model and no slower, because these numbers stay in the processor's caches.
"""

import ctypes
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from noria.services.executor.cpu.native.buffers import Norms, ScratchTensors
from noria.services.executor.cpu.native.layers import NativeLayers
from noria.services.executor.cpu.native.library import (
    AttentionHeadsArguments,
    CacheArguments,
    Kernels,
    PagesArguments,
    SlicesArguments,
)
from noria.services.executor.cpu.native.linear import TYPES, Scratch
from noria.services.executor.cpu.native.sampling import NativeSampling
from noria.services.executor.kv_cache.paged_cache import KVCache
from noria.services.executor.model.architecture import Architecture
from noria.services.executor.model.expert_reads import ExpertReads
from noria.services.executor.model.linear_layers import Linear
from noria.services.executor.model.operations import DecoderLayer, composed
from noria.services.executor.model.rope import Rope
from noria.services.executor.plan.batch import Batch
from noria.services.executor.plan.limits import ExecutorLimits, Integers
from noria.services.executor.plan.sampling_metadata import SamplerOutput, SamplingMetadata

HEAD_DIM_MAX: Final = 1024
"""Numbers in a head that the kernels have room for."""

_LANES: Final = 16


class NativeOperations:
    """`CpuOperations` by native kernels over one cache. places: for each layer its group and its rank there."""

    def __init__(
        self,
        architecture: Architecture,
        shape: ExecutorLimits,
        cache: KVCache,
        places: Sequence[tuple[int, int]],
        dtype: torch.dtype,
        kernels: Kernels,
        threads: int,
    ) -> None:
        assert architecture.head_dim <= HEAD_DIM_MAX and architecture.head_dim % 2 == 0
        self._architecture = architecture
        self.experts = ExpertReads()
        self._kernels = kernels
        self._threads = threads
        self._dtype, self._type = dtype, TYPES[dtype]
        self._cache = cache
        self._layers = [
            _LayerCache(architecture, shape, cache, layer, group) for layer, (group, _) in enumerate(places)
        ]
        cap = architecture.score_cap or 0.0
        self._heads = AttentionHeadsArguments(architecture.heads, self._type, architecture.scale, cap)
        self._heads_at = ctypes.addressof(self._heads)
        self._rotations = [
            rotation_table(rope, architecture.head_dim, shape.max_model_tokens) for rope in architecture.ropes
        ]
        self._buffers, self._norms = ScratchTensors(), Norms()
        self._whole = NativeLayers(
            kernels,
            architecture,
            dtype,
            self._heads_at,
            [each.at for each in self._layers],
            [each.group for each in self._layers],
            [each.data_ptr() for each in self._rotations],
            self._buffers,
            self._norms,
            threads,
        )
        self._scratch = Scratch()
        self._plans = [Scratch() for _ in shape.groups]
        self._sampling = NativeSampling(kernels, architecture.vocabulary, threads)

    def begin(self, batch: Batch, rows: Integers | None) -> None:
        """Lay out a step."""
        self._picked = None if rows is None else np.ascontiguousarray(rows)
        self._batch = batch
        self._rows = len(batch.token_ids)
        self._ids, self._positions = _address(batch.token_ids), _address(batch.positions)
        slices = batch.slices
        self._slices = SlicesArguments(
            _address(slices.starts), _address(slices.lengths), _address(slices.rows), len(slices.starts)
        )
        self._pages = [
            PagesArguments(
                _address(each.table), each.table.shape[1], each.ring, each.window, _address(each.write_slots)
            )
            for each in batch.pages
        ]
        self._slices_at = ctypes.addressof(self._slices)
        self._pages_at = [ctypes.addressof(each) for each in self._pages]
        cache_at = self._layers[0].at
        needs = []
        for pages, at, plan in zip(self._pages, self._pages_at, self._plans, strict=True):
            common = self._heads_at, cache_at, self._slices_at, at, self._threads
            pages.plan = plan.address(self._kernels.attention_plan(*common))
            needs.append(self._kernels.attention_plan(*common))
        self._scratch_at = self._scratch.address(max(needs))
        wanted = self._wanted()
        self._whole.begin(self._rows, self._positions, self._slices_at, self._pages_at, self._scratch_at, wanted)

    def _wanted(self) -> tuple[int, int] | None:
        """Address and number of the rows that are picked; None where that is all of them, or not in their order."""
        picked = self._picked
        if picked is None:
            return self._positions, 0  # any address: nothing is read there
        ascends = len(picked) < self._rows and bool((picked[1:] > picked[:-1]).all())
        return (_address(picked), len(picked)) if ascends else None

    def embedded(self, table: torch.Tensor, scale: float) -> torch.Tensor:
        """Rows of the embedding, in float32."""
        width = table.shape[1]
        x = self._buffers.of("residual", self._rows, width, torch.float32)
        kind = TYPES[table.dtype]
        self._kernels.embed(table.data_ptr(), kind, self._ids, scale, x.data_ptr(), self._rows, width, self._threads)
        return x

    def layers(self, layers: Sequence[DecoderLayer], x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """All layers: those that follow each other with dense MLPs in one call."""
        residual: torch.Tensor | None = None
        index = 0
        while index < len(layers):
            count = self._whole.run(layers, index, x, residual)
            if count:
                x, residual = self._whole.added, self._whole.residual
            else:
                x, residual = composed(self, index, layers[index], x, residual)
            index += count or 1
        assert residual is not None
        return x, residual

    def linear(self, x: torch.Tensor, weight: Linear) -> torch.Tensor:
        """Matrix product, in float32."""
        out = self._buffers.of("product", x.shape[0], weight.outputs, torch.float32)
        weight.into(x, out)
        return out

    def norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """RMS norm, in place."""
        rows, width = x.shape
        epsilon = self._architecture.epsilon
        self._kernels.norm(x.data_ptr(), self._norms.address(weight), epsilon, rows, width, self._threads)
        return x

    def add_norm(
        self, x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add x to the residual stream in place; the normed sum is of the model's dtype."""
        rows, width = x.shape
        total, added = (x.data_ptr(), None) if residual is None else (residual.data_ptr(), x.data_ptr())
        normed = self._buffers.of("normed", rows, width, self._dtype)
        self._kernels.add_norm(
            total,
            added,
            self._norms.address(weight),
            self._architecture.epsilon,
            None,
            normed.data_ptr(),
            self._type,
            rows,
            width,
            self._threads,
        )
        return normed, x if residual is None else residual

    def rotate_write(
        self, layer: int, qkv: torch.Tensor, head_norms: tuple[torch.Tensor, torch.Tensor] | None
    ) -> torch.Tensor:
        """Norm the heads where the family does, rotate queries and keys in float32, write the cache."""
        facts, place = self._architecture, self._layers[layer]
        queries = self._buffers.of("queries", self._rows, facts.heads * facts.head_dim, self._dtype)
        query_norm, key_norm = (None, None) if head_norms is None else map(self._norms.address, head_norms)
        self._kernels.rotate_write(
            self._heads_at,
            place.at,
            qkv.data_ptr(),
            self._positions,
            self._pages[place.group].write_slots,
            self._rotations[facts.layer_ropes[layer]].data_ptr(),
            query_norm,
            key_norm,
            facts.epsilon,
            queries.data_ptr(),
            self._rows,
            self._threads,
        )
        return queries

    def place(self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Write keys and values that are rotated already; return queries as attention takes them."""
        self._cache.write(
            layer, torch.from_numpy(self._batch.pages[self._layers[layer].group].write_slots), keys, values
        )
        rows, size = queries.shape[0], self._architecture.head_dim
        return self._cache.queries(queries.view(rows, -1, size)).reshape(rows, -1)

    def attention(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        """Causal attention over the paged cache."""
        place = self._layers[layer]
        out = self._buffers.of("attended", self._rows, queries.shape[1], self._dtype)
        self._kernels.attention(
            self._heads_at,
            place.at,
            self._slices_at,
            self._pages_at[place.group],
            queries.data_ptr(),
            out.data_ptr(),
            self._scratch_at,
            self._threads,
        )
        return out

    def gated(self, gate_up: torch.Tensor) -> torch.Tensor:
        """activation(first half) * second half."""
        rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        out = self._buffers.of("gated", rows, width, self._dtype)
        gelu = self._architecture.activation != "silu"
        self._kernels.gated(gate_up.data_ptr(), gelu, out.data_ptr(), self._type, rows, width, self._threads)
        return out

    def logits(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, head: Linear) -> torch.Tensor:
        """Float32 products of the head."""
        rows = self._picked
        assert rows is not None
        count, width = len(rows), x.shape[1]
        picked = self._buffers.of("picked", count, width, self._dtype)
        self._kernels.add_norm(
            residual.data_ptr(),
            x.data_ptr(),
            self._norms.address(weight),
            self._architecture.epsilon,
            None if self._whole.only_wanted else _address(rows),
            picked.data_ptr(),
            self._type,
            count,
            width,
            self._threads,
        )
        logits = self._buffers.of("logits", count, head.outputs, torch.float32)
        head.into(picked, logits)
        return logits

    def sample(self, logits: torch.Tensor, sampler: SamplingMetadata) -> SamplerOutput:
        """Sample all rows by the native sampler."""
        return self._sampling.sample(logits, sampler)


class _LayerCache:
    """A layer's place in the cache as the kernels see it."""

    def __init__(
        self, architecture: Architecture, shape: ExecutorLimits, cache: KVCache, layer: int, group: int
    ) -> None:
        self.group = group
        kind = TYPES[cache.dtype]
        heads, size = architecture.kv_heads, architecture.head_dim
        keys, values = cache.addresses(layer)
        self._arguments = CacheArguments(
            keys, values, cache.page_bytes, shape.page_size, heads, size, kind, cache.tiled
        )
        self.at = ctypes.addressof(self._arguments)


def rotation_table(rope: Rope, head_dim: int, positions: int) -> torch.Tensor:
    """Cosines, then sines, of every position: float32 [positions, head size]; a vector more, which kernels may read."""
    frequencies = torch.tensor(rope.frequencies(head_dim), dtype=torch.float32)
    angles = torch.arange(positions, dtype=torch.float32)[:, None] * frequencies
    table = torch.zeros(positions * head_dim + _LANES)
    table[: positions * head_dim] = torch.cat((angles.cos(), angles.sin()), -1).flatten()
    return table


def _address(array: NDArray[np.generic]) -> int:
    assert array.flags.c_contiguous
    return array.ctypes.data
