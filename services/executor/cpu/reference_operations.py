"""The operations in plain PyTorch on a processor, for any dtype: the reference for every faster implementation.

On a CPU with MKL and oneDNN each of them gives a query token the same bits whoever is in the batch and however its
prompt was cut: see docs/decisions/0004.
"""

from collections.abc import Sequence

import torch

from noria.services.executor.cpu.reference_attention import singles_attention, span_attention
from noria.services.executor.cpu.reference_sampling import sample
from noria.services.executor.cpu.step_tensors import RotaryTable, StepTensors, to_step
from noria.services.executor.cpu.tensor_operations import TensorOperations
from noria.services.executor.kv_cache.paged_cache import KVCache
from noria.services.executor.model.architecture import Architecture
from noria.services.executor.model.linear_layers import Linear
from noria.services.executor.plan.batch import Batch
from noria.services.executor.plan.limits import ExecutorLimits, Integers
from noria.services.executor.plan.sampling_metadata import SamplerOutput, SamplingMetadata


class ReferenceOperations(TensorOperations):
    """The reference operations: plain PyTorch over one cache, for any dtype. places: for each layer its group and its index there."""

    _step: StepTensors

    def __init__(
        self,
        architecture: Architecture,
        shape: ExecutorLimits,
        cache: KVCache,
        places: Sequence[tuple[int, int]],
        dtype: torch.dtype,
    ) -> None:
        super().__init__(architecture)
        self._shape = shape
        self._dtype = dtype
        self._rotations = [
            RotaryTable(rope, architecture.head_dim, shape.max_model_tokens) for rope in architecture.ropes
        ]
        self._groups = [group for group, _ in places]
        self._cache = cache

    def begin(self, batch: Batch, rows: Integers | None) -> None:
        """Lay out a step."""
        self._rows = None if rows is None else torch.from_numpy(rows)
        self._step = step = to_step(batch, self._rotations, self._shape, self._architecture.query_group, self._dtype)
        self._token_ids, self._turns = step.token_ids, step.turns

    def _placed(self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        self._cache.write(layer, self._step.groups[self._groups[layer]].write_slots, keys, values)
        return self._cache.queries(queries)

    def attention(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        """Causal attention over the paged cache."""
        part = self._step.groups[self._groups[layer]]
        if part.singles is not None and not part.spans:
            found = singles_attention(self._cache, layer, queries, part.singles, self._architecture)
            return torch.empty_like(found).index_copy_(0, part.singles.rows, found)
        out = queries.new_empty(queries.shape[0], self._query_width)
        if part.singles is not None:
            found = singles_attention(self._cache, layer, queries, part.singles, self._architecture)
            out.index_copy_(0, part.singles.rows, found)
        for span in part.spans:
            rows = slice(span.row, span.row + span.length)
            out[rows] = span_attention(self._cache, layer, queries[rows], span, self._architecture)
        return out

    def logits(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, head: Linear) -> torch.Tensor:
        """Float32 products of the head."""
        assert self._rows is not None
        normed, _ = self.add_norm(x.index_select(0, self._rows), residual.index_select(0, self._rows), weight)
        return self.linear(normed, head)

    def sample(self, logits: torch.Tensor, sampler: SamplingMetadata) -> SamplerOutput:
        """Sample row by row, as `cpu/reference_sampling.py` defines."""
        return sample(logits, sampler)
