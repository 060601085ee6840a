"""The operations of a step on a device in plain PyTorch: what tests compare the Triton kernels with, on any device and cache.

Attention gathers all the pages that a table has, those that a token does not see included.
"""

from collections.abc import Sequence
from typing import Final

import torch
from fakes.plain_sampling import sample

from noria.services.executor.config import ExecutorConfig
from noria.services.executor.cpu.step_tensors import RotaryTable
from noria.services.executor.cpu.tensor_operations import TensorOperations
from noria.services.executor.cuda.device.cache_pool import DeviceCachePool
from noria.services.executor.cuda.device.recent_tokens import DeviceRecentTokens
from noria.services.executor.cuda.device.step_inputs import GroupInputs, StepInputs
from noria.services.executor.cuda.device.step_outputs import StepOutputs
from noria.services.executor.cuda.engine import ModelOnDevice
from noria.services.executor.cuda.layout.step_sizes import StepSizes
from noria.services.executor.kv_cache.layer_groups import layer_groups
from noria.services.executor.kv_cache.page_formats import make_page_format
from noria.services.executor.model.architecture import Architecture
from noria.services.executor.model.linear_layers import Linear
from noria.services.executor.plan.batch import Batch

GATHER_BYTES: Final = 64 << 20
"""Keys and values that attention gathers at once."""

_TILE_TOKENS: Final = 64


class PlainOperations(TensorOperations):
    """`DeviceOperations` over one pool. places: for each layer its group and its rank there. store: the cache's dtype."""

    _step: StepInputs

    def __init__(
        self,
        architecture: Architecture,
        pool: DeviceCachePool,
        places: Sequence[tuple[int, int]],
        dtype: torch.dtype,
        store: torch.dtype,
    ) -> None:
        device, shape = pool.data.device, pool.shape
        super().__init__(architecture, device)
        self._page_size = shape.page_size
        self._groups = [group for group, _ in places]
        self._store = make_page_format(architecture, shape, dtype, store, device)
        self._layers = [self._store.layer(pool.data[:, rank * shape.num_chunks :]) for _, rank in places]
        self._rotations = [
            RotaryTable(rope, architecture.head_dim, shape.max_model_tokens, device) for rope in architecture.ropes
        ]
        self._slots = DeviceRecentTokens(shape.max_slots, device)
        page = 2 * shape.page_size * architecture.key_width * 4
        self._pages_at_once = max(1, GATHER_BYTES // page)

    @property
    def name(self) -> str:
        """What computes, for a person."""
        return "plain PyTorch"

    @property
    def tile_tokens(self) -> int:
        """Query tokens that a tile of attention takes: nobody looks at tiles here."""
        return _TILE_TOKENS

    @property
    def kept(self) -> Sequence[torch.Tensor]:
        """The tokens sampled last in each slot, and the count of experts."""
        return self._slots.last, self._slots.recent, self.experts.total

    def plan(self, batch: Batch, sizes: StepSizes) -> None:
        """Nothing is to be done on the host."""
        del batch, sizes

    def take(self, step: StepInputs) -> None:
        """The step that follows."""
        self._step = step
        self._token_ids = self._slots.carried(step)
        self._turns = [each.of(step.positions) for each in self._rotations]
        # The padding after a step's slices has no rows: it begins after all, so that beginnings and ends ascend.
        ends = torch.where(step.lengths > 0, step.rows + step.lengths, step.sizes.tokens + 1)
        rows = torch.arange(step.sizes.tokens, device=ends.device, dtype=ends.dtype)
        self._slice_of = torch.searchsorted(ends, rows, right=True).clamp(max=len(ends) - 1)

    def _placed(self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        self._layers[layer].write(self._step.groups[self._groups[layer]].write_slots, keys, values)
        return self._store.queries(queries)

    def attention(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        """Causal attention over the paged cache, some query tokens after the other."""
        part = self._step.groups[self._groups[layer]]
        entries, tokens = part.table.shape[1], len(queries)
        at_once = max(1, self._pages_at_once // entries)
        found = [
            self._attention(layer, part, queries[first : first + at_once], slice(first, first + at_once))
            for first in range(0, tokens, at_once)
        ]
        return torch.cat(found).view(tokens, -1)

    def _attention(self, layer: int, part: GroupInputs, queries: torch.Tensor, rows: slice) -> torch.Tensor:
        facts, step = self._architecture, self._step
        of = self._slice_of[rows]
        table = part.table.index_select(0, of)
        sizes = (len(of), -1, facts.kv_heads, facts.head_dim)
        keys, values = (each.view(sizes).float() for each in self._layers[layer].gather(table.flatten()))
        grouped = queries.view(len(of), facts.kv_heads, facts.query_group, facts.head_dim).float()
        scores = torch.einsum("tkgd,tnkd->tkgn", grouped, keys) * facts.scale
        if facts.score_cap is not None:
            scores = torch.tanh(scores / facts.score_cap) * facts.score_cap
        at = step.positions[rows].long()[:, None]
        last = (step.starts + step.lengths - 1).index_select(0, of).long().clamp(min=0)[:, None]
        positions = self._positions(part, last)
        seen = (positions >= 0) & (positions <= at)
        if part.window:
            seen &= positions > at - part.window
        # A row of padding may see nothing at all: a large negative number, unlike -inf, gives no NaN.
        scores = scores.masked_fill(~seen[:, None, None], -1e30)
        return torch.einsum("tkgn,tnkd->tkgd", scores.softmax(-1), values).to(queries.dtype).flatten(1)

    def _positions(self, part: GroupInputs, last: torch.Tensor) -> torch.Tensor:
        """By token, the position of each key that its table names [T, keys]; last [T, 1]: its slice's last position."""
        entries = torch.arange(part.table.shape[1], device=last.device)[None]
        pages = entries.expand(len(last), -1)
        if part.ring:
            newest = last // self._page_size
            pages = newest - (newest - entries) % part.ring
        offsets = torch.arange(self._page_size, device=last.device)
        return (pages[:, :, None] * self._page_size + offsets).flatten(1)

    def logits(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, head: Linear) -> torch.Tensor:
        """Float32 products of the head."""
        rows = self._step.sampled.rows
        normed, _ = self.add_norm(x.index_select(0, rows), residual.index_select(0, rows), weight)
        return self.linear(normed, head)

    def sample(self, logits: torch.Tensor, step: StepInputs, out: StepOutputs) -> None:
        """Sample all rows at once."""
        sample(logits, step.sampled, self._slots.history(step.sampled), out)
        self._slots.note(step.sampled, out.ids)
        out.experts.copy_(self.experts.total)


def make_plain_operations(config: ExecutorConfig, made: ModelOnDevice, pool: DeviceCachePool) -> PlainOperations:
    """Plain operations for a loaded model over a pool, in the place of `cuda.backend.choose_operations`."""
    del config
    places = layer_groups(made.architecture.windows, pool.shape.max_model_tokens)
    return PlainOperations(made.architecture, pool, places, made.dtype, made.store)
