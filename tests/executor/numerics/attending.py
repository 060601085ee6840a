"""Rotation, cache and attention of one layer driven by plans: what each (sequence, position) gives, however it is scheduled."""

import ctypes
from dataclasses import dataclass

import msgspec
import torch
from executor.numerics.comparison import LEVELS

from noria.proto.base import Stream
from noria.proto.execution import Fill, Slice, StepPlan
from noria.proto.sampling import Sampling
from noria.services.executor.cpu.native.library import open_kernels
from noria.services.executor.cpu.native.operations import NativeOperations
from noria.services.executor.cpu.reference_operations import ReferenceOperations
from noria.services.executor.kv_cache.layer_groups import cache_groups, layer_groups
from noria.services.executor.kv_cache.paged_cache import KVCache
from noria.services.executor.model.architecture import Architecture
from noria.services.executor.model.operations import CpuOperations
from noria.services.executor.model.rope import Rope
from noria.services.executor.plan.batch_builder import prepare
from noria.services.executor.plan.limits import ExecutorLimits
from noria.services.executor.plan.slot_table import SlotTable

Schedule = list[list[tuple[int, int, int]]]
"""Steps of slices (sequence, start, length)."""

LENGTHS = (1, 5, 40, 290)
TOGETHER: Schedule = [
    [(0, 0, 1), (1, 0, 3), (3, 0, 120)],
    [(1, 3, 1), (2, 0, 39), (3, 120, 147)],
    [(2, 39, 1), (3, 267, 1)],
    [(1, 4, 1), (3, 268, 22)],
]
ALONE: Schedule = [[(sequence, 0, length)] for sequence, length in enumerate(LENGTHS)]


class Layer(msgspec.Struct, frozen=True):
    """A layer's attention, its cache and what computes it. level: empty is plain PyTorch, "device" a device's kernels,
    "flashinfer" these with FlashInfer's attention.

    step_tokens: the most that a step has, all of the longest sequence where 0; a window's pages are used again sooner.
    padding: how much larger than needed a device's arrays are.
    common: by sequence, how many of its first pages are those of the first sequence.
    """

    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 16
    window: int = 0
    cap: float | None = None
    head_norm: bool = False
    page_size: int = 16
    dtype: torch.dtype = torch.float32
    cache: torch.dtype = torch.float32
    level: str = ""
    threads: int = 1
    lengths: tuple[int, ...] = LENGTHS
    shuffle: int = 0
    step_tokens: int = 0
    padding: int = 0
    common: tuple[int, ...] = (0, 0, 0, 0)

    @property
    def architecture(self) -> Architecture:
        return Architecture(
            family="llama",
            vocabulary=50,
            hidden=self.heads * self.head_dim,
            intermediate=8,
            layers=1,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            epsilon=1e-5,
            windows=(self.window,),
            ropes=(Rope(10000.0),),
            layer_ropes=(0,),
            qkv_bias=False,
            out_bias=False,
            mlp_bias=False,
            head_norm=self.head_norm,
            tied=True,
            scale=self.head_dim**-0.5,
            score_cap=self.cap,
        )


@dataclass(slots=True, eq=False)
class Attended:
    """Outputs by sequence [length, heads * head size]."""

    rows: list[torch.Tensor]

    def error(self, other: "Attended") -> float:
        # Of tensors, so that what is no number shows: Python's `max` would pass over it.
        found = [(a.float() - b.float()).abs().max() for a, b in zip(self.rows, other.rows, strict=True)]
        return float(torch.stack(found).max())

    def same_bits(self, other: "Attended") -> bool:
        return all(torch.equal(a, b) for a, b in zip(self.rows, other.rows, strict=True))


def attended(
    layer: Layer, schedule: Schedule, *, spoilt: bool = False, level: str | None = None, tiled: bool = True
) -> Attended:
    """Run a schedule. spoilt: every byte of the cache is 255, NaN in most formats, before it is written; of tiled pages, which
    hold finite numbers only, 127, the largest.

    level: what computes every second step over the same cache, the layer's own where None. tiled: whether pages are, where
    kernels read them and they can be.
    """
    facts = layer.architecture
    longest = max(layer.lengths)
    groups = cache_groups(facts.windows, longest + 1, layer.step_tokens or longest, layer.page_size)
    per = -(-longest // layer.page_size) + 1
    shape = ExecutorLimits(4, 2048, longest + 1, layer.page_size, 2 + 4 * per, 50, groups)
    places = layer_groups(facts.windows, longest + 1)
    native = tiled and not {layer.level, level}.isdisjoint(LEVELS)
    cache = KVCache(facts, shape, places, layer.dtype, layer.cache, native=native)

    if spoilt:
        for address in cache.addresses(0):
            ctypes.memset(address, 127 if cache.tiled else 255, shape.num_chunks * cache.page_bytes)
    sides = [_operations(layer, each, shape, cache, places) for each in (layer.level, level)]
    generator = torch.Generator().manual_seed(7)
    width = (facts.heads + 2 * facts.kv_heads) * facts.head_dim
    given = [torch.randn(length, width, generator=generator) for length in layer.lengths]
    norms = (1 + torch.randn(2, facts.head_dim, generator=generator) / 4).to(layer.dtype)
    rows = [torch.zeros(length, facts.heads * facts.head_dim, dtype=layer.dtype) for length in layer.lengths]
    slots = SlotTable(shape)
    for number, slices in enumerate(schedule, 1):
        fills = _fills(layer, shape, per) if number == 1 else ()
        plan = StepPlan(1, number, tuple(Slice(*each, False, False) for each in slices), fill=fills)
        operations = sides[number % 2 == 0]
        operations.begin(prepare(slots, plan), None)
        qkv = torch.cat([given[slot][start : start + length] for slot, start, length in slices]).to(layer.dtype)
        queries = operations.rotate_write(
            0,
            qkv.float() if isinstance(operations, NativeOperations) else qkv,
            (norms[0], norms[1]) if facts.head_norm else None,
        )
        found = operations.attention(0, queries)
        parts = found[: len(qkv)].split([each[2] for each in slices])
        for (slot, start, length), part in zip(slices, parts, strict=True):
            rows[slot][start : start + length] = part
    return Attended(rows)


def _operations(
    layer: Layer, level: str | None, shape: ExecutorLimits, cache: KVCache, places: list[tuple[int, int]]
) -> CpuOperations:
    level = layer.level if level is None else level
    if level in ("device", "flashinfer"):
        from executor.numerics.on_device import OnDevice

        flashinfer = level == "flashinfer"
        return OnDevice(layer.architecture, shape, cache, places, layer.dtype, layer.padding, flashinfer=flashinfer)
    if level:
        kernels = open_kernels(level)
        return NativeOperations(layer.architecture, shape, cache, places, layer.dtype, kernels, layer.threads)
    return ReferenceOperations(layer.architecture, shape, cache, places, layer.dtype)


def _fills(layer: Layer, shape: ExecutorLimits, per: int) -> tuple[Fill, ...]:
    entries = min(per, shape.table_width(0))
    blocks = torch.arange(2, 2 + 4 * per)
    if layer.shuffle:
        blocks = blocks[torch.randperm(4 * per, generator=torch.Generator().manual_seed(layer.shuffle))]
    blocks = blocks.view(4, per)
    for table, pages in zip(blocks, layer.common, strict=False):
        table[:pages] = blocks[0, :pages]
    tables = blocks[:, :entries].tolist()
    return tuple(
        Fill(slot, Stream(slot, 0), 0, tuple([1] * length), (), Sampling(), (), (tuple(tables[slot]),))
        for slot, length in enumerate(layer.lengths)
    )
