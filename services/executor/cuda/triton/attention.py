"""Attention on a device by our Triton kernels."""

from collections.abc import Sequence
from typing import Final

import torch

from noria.services.executor.cuda.device.step_inputs import StepInputs
from noria.services.executor.cuda.layers.attention import power_of_two, tile_rows
from noria.services.executor.cuda.layers.layer_pages import LayerPages, head_block
from noria.services.executor.cuda.layout.step_sizes import SPLIT_TOKENS, StepSizes
from noria.services.executor.cuda.triton.attention_kernels import attend, join
from noria.services.executor.model.architecture import Architecture
from noria.services.executor.plan.batch import Batch
from noria.services.executor.plan.limits import ExecutorLimits

_ROWS_MIN: Final = 16
"""What matrix units multiply at least."""

_KEYS: Final = 64
"""Keys taken at once."""

_WIDE_HEAD: Final = 256
"""Columns of a head from which on there is room for half as many keys."""


class TritonAttention:
    """`DeviceAttention` by Triton kernels. pages: of each layer. groups: by layer, its group."""

    name = "Triton"

    def __init__(
        self, architecture: Architecture, shape: ExecutorLimits, pages: Sequence[LayerPages], groups: Sequence[int]
    ) -> None:
        self._architecture = architecture
        self._page_size = shape.page_size
        self._pages, self._groups = pages, groups
        self._columns = head_block(architecture)
        self._tile_rows = tile_rows(architecture)

    def plan(self, batch: Batch, sizes: StepSizes) -> None:
        """Do nothing: all that it needs is in the inputs."""

    def run(self, layer: int, queries: torch.Tensor, out: torch.Tensor, step: StepInputs) -> None:
        """Queue the tiles of slices of several tokens, the splits of single tokens, and their join."""
        facts, group = self._architecture, step.groups[self._groups[layer]]
        tiles, splits, singles = len(step.tiles), len(group.splits), len(step.singles)
        if tiles:
            self._attend(layer, step, tiles, step.tiles, queries, out, out, rows=self._tile_rows, split=0)
        if not singles:
            return
        parts = queries.new_empty(splits, facts.heads, facts.head_dim, dtype=torch.float32)
        weights = queries.new_empty(splits, facts.heads, dtype=torch.float32)
        rows = max(_ROWS_MIN, power_of_two(facts.query_group))
        self._attend(layer, step, splits, group.splits, queries, parts, weights, rows=rows, split=SPLIT_TOKENS)
        join[(singles, facts.heads)](
            parts,
            weights,
            out,
            group.joins,
            step.singles,
            step.rows,
            HEADS=facts.heads,
            HEAD_DIM=facts.head_dim,
            BLOCK_D=self._columns,
            num_warps=1,
            enable_fp_fusion=True,
        )

    def _attend(
        self,
        layer: int,
        step: StepInputs,
        count: int,
        work: torch.Tensor,
        queries: torch.Tensor,
        out: torch.Tensor,
        weights: torch.Tensor,
        *,
        rows: int,
        split: int,
    ) -> None:
        facts, pages, group = self._architecture, self._pages[layer], step.groups[self._groups[layer]]
        attend[(count, facts.kv_heads)](
            queries,
            out,
            weights,
            pages.keys,
            pages.values,
            pages.key_scales,
            pages.value_scales,
            group.table,
            group.table.shape[1],
            work,
            step.starts,
            step.rows,
            step.lengths,
            facts.scale,
            facts.score_cap or 0.0,
            GROUP=facts.query_group,
            KV_HEADS=facts.kv_heads,
            HEAD_DIM=facts.head_dim,
            PAGE_SIZE=self._page_size,
            PAGE_STRIDE=pages.stride,
            RING=group.ring,
            WINDOW=group.window,
            SPLIT=split,
            CAPPED=facts.score_cap is not None,
            QUANTISED=pages.quantised,
            BLOCK_M=rows,
            BLOCK_N=_KEYS // 2 if self._columns >= _WIDE_HEAD else _KEYS,
            BLOCK_D=self._columns,
            num_warps=4,
            num_stages=2,
            enable_fp_fusion=True,
        )
