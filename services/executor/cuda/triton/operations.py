"""The operations on a device by Triton kernels and torch's products; all of them can be recorded in a graph.

All of it can be recorded in a graph: sizes are those of the step's inputs, and what a kernel must know is read on the
device. The residual stream is float32.
"""

from collections.abc import Sequence

import torch

from noria.services.executor.cuda.device.recent_tokens import DeviceRecentTokens
from noria.services.executor.cuda.device.step_inputs import StepInputs
from noria.services.executor.cuda.device.step_outputs import StepOutputs
from noria.services.executor.cuda.layers.attention import DeviceAttention, tile_tokens
from noria.services.executor.cuda.layers.layer_pages import head_block, largest, layer_pages
from noria.services.executor.cuda.layout.step_sizes import StepSizes
from noria.services.executor.cuda.triton.attention import TritonAttention
from noria.services.executor.cuda.triton.elementwise_kernels import add_norm, embed, gate
from noria.services.executor.cuda.triton.head_kernels import rotate_write
from noria.services.executor.cuda.triton.sampler import TritonSampler
from noria.services.executor.model.architecture import Architecture
from noria.services.executor.model.expert_reads import ExpertReads
from noria.services.executor.model.linear_layers import Linear
from noria.services.executor.model.operations import DecoderLayer, in_turn
from noria.services.executor.model.rope import Rope
from noria.services.executor.plan.batch import Batch
from noria.services.executor.plan.limits import ExecutorLimits

_BLOCK = 1024
"""Numbers that a program of an embedding or a gate takes."""


class TritonOperations:
    """`DeviceOperations` over a cache. rows: by layer, its part of the pool [2, rows, page bytes], from its row 0 on.

    attention: what computes that, in place of our own kernels. store: the cache's dtype.
    """

    _step: StepInputs
    _out: torch.Tensor

    def __init__(
        self,
        architecture: Architecture,
        shape: ExecutorLimits,
        rows: Sequence[torch.Tensor],
        places: Sequence[tuple[int, int]],
        dtype: torch.dtype,
        store: torch.dtype,
        attention: DeviceAttention | None = None,
    ) -> None:
        self._architecture, self._shape = architecture, shape
        self._pages = [layer_pages(each, store) for each in rows]
        self._groups = [group for group, _ in places]
        self._dtype, self._limit = dtype, largest(store)
        self._attention = attention or TritonAttention(architecture, shape, self._pages, self._groups)
        device = rows[0].device
        self._slots = DeviceRecentTokens(shape.max_slots, device)
        self.experts = ExpertReads(device)
        self._sampler = TritonSampler(architecture.vocabulary, self._slots)
        self._rotations = [
            rotation_table(rope, architecture.head_dim, shape.max_model_tokens).to(device)
            for rope in architecture.ropes
        ]
        width = architecture.heads * architecture.head_dim
        # Zero at first: rows of no slice are never written, but go through the products behind.
        self._attended = torch.zeros(shape.max_batch_tokens, width, dtype=dtype, device=device)

    @property
    def name(self) -> str:
        """What computes, as shown to the user."""
        return f"Triton kernels, attention by {self._attention.name}"

    @property
    def tile_tokens(self) -> int:
        """Query tokens that a tile of attention takes."""
        return tile_tokens(self._architecture)

    @property
    def kept(self) -> Sequence[torch.Tensor]:
        """The tokens sampled last in each slot, and the count of experts."""
        return self._slots.last, self._slots.recent, self.experts.total

    def plan(self, batch: Batch, sizes: StepSizes) -> None:
        """Prepare on the host what attention needs before a step of these sizes."""
        self._attention.plan(batch, sizes)

    def take(self, step: StepInputs) -> None:
        """Begin a step over these inputs."""
        tokens, most = step.sizes.tokens, len(self._attended)
        # Padding may go beyond the largest step. Such memory is the step's own: in a graph it is the graph's.
        fits = tokens <= most
        self._out = self._attended[:tokens] if fits else self._attended.new_zeros(tokens, self._attended.shape[1])
        self._step = step

    def embedded(self, table: torch.Tensor, scale: float) -> torch.Tensor:
        """Rows of the embedding, in float32."""
        step, width = self._step, table.shape[1]
        out = table.new_empty(step.sizes.tokens, width, dtype=torch.float32)
        embed[(step.sizes.tokens, -(-width // _BLOCK))](
            table,
            step.token_ids,
            step.carry,
            self._slots.last,
            out,
            scale,
            WIDTH=width,
            SCALED=scale != 1,
            BLOCK=_BLOCK,
            enable_fp_fusion=True,
        )
        return out

    def layers(self, layers: Sequence[DecoderLayer], x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """All layers, operation by operation."""
        return in_turn(self, layers, x)

    def linear(self, x: torch.Tensor, weight: Linear) -> torch.Tensor:
        """Matrix product."""
        return weight(x)

    def norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """RMS norm, in float32."""
        return self._normed(x, None, None, weight, torch.float32)

    def add_norm(
        self, x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add x to the residual stream in place; the normed sum is of the model's dtype."""
        if residual is None:
            residual = x.float()
            return self._normed(residual, None, None, weight, self._dtype), residual
        return self._normed(x, residual, None, weight, self._dtype), residual

    def rotate_write(
        self, layer: int, qkv: torch.Tensor, head_norms: tuple[torch.Tensor, torch.Tensor] | None
    ) -> torch.Tensor:
        """Norm the heads where the family does, rotate queries and keys in float32, write the cache."""
        return self._write(layer, qkv, head_norms, self._rotations[self._architecture.layer_ropes[layer]])

    def place(self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Write keys and values that are rotated already; return queries as attention takes them."""
        return self._write(layer, torch.cat((queries, keys, values), 1), None, None)

    def attention(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        """Causal attention over the paged cache."""
        self._attention.run(layer, queries, self._out, self._step)
        return self._out

    def gated(self, gate_up: torch.Tensor) -> torch.Tensor:
        """activation(first half) * second half."""
        rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        out = gate_up.new_empty(rows, width, dtype=self._dtype)
        if rows:
            gelu = self._architecture.activation != "silu"
            gate[(rows, -(-width // _BLOCK))](gate_up, out, WIDTH=width, GELU=gelu, BLOCK=_BLOCK, enable_fp_fusion=True)
        return out

    def logits(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, head: Linear) -> torch.Tensor:
        """Float32 products of the head, of the step's sampled rows."""
        return self.linear(self._normed(x, residual, self._step.sampled.rows, weight, self._dtype), head)

    def sample(self, logits: torch.Tensor, step: StepInputs, out: StepOutputs) -> None:
        """Sample one token per row of float32 logits [rows, vocabulary], which are overwritten, and keep it for its slot."""
        self._sampler.sample(logits, step, out)
        out.experts.copy_(self.experts.total)

    def _normed(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        rows: torch.Tensor | None,
        weight: torch.Tensor,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        """RMS norm of x + residual, of some rows; the sum is kept where it is of all."""
        count, width = len(x) if rows is None else len(rows), x.shape[1]
        out = x.new_empty(count, width, dtype=dtype)
        block = 1 << (width - 1).bit_length()
        add_norm[(count,)](
            x,
            x if residual is None else residual,
            self._step.rows if rows is None else rows,
            weight,
            out,
            self._architecture.epsilon,
            WIDTH=width,
            ADDS=residual is not None,
            KEEPS=residual is not None and rows is None,
            PICKS=rows is not None,
            BLOCK=block,
            num_warps=max(1, min(16, block // 512)),
            enable_fp_fusion=True,
        )
        return out

    def _write(
        self,
        layer: int,
        qkv: torch.Tensor,
        head_norms: tuple[torch.Tensor, torch.Tensor] | None,
        rotations: torch.Tensor | None,
    ) -> torch.Tensor:
        facts, pages, step = self._architecture, self._pages[layer], self._step
        queries = qkv.new_empty(step.sizes.tokens, facts.heads * facts.head_dim)
        group, columns = facts.query_group, head_block(facts)
        rows = 1 << (group + 1).bit_length()
        query_norm, key_norm = (qkv, qkv) if head_norms is None else head_norms
        rotate_write[(step.sizes.tokens, facts.kv_heads)](
            qkv,
            queries,
            pages.keys,
            pages.values,
            pages.key_scales,
            pages.value_scales,
            step.groups[self._groups[layer]].write_slots,
            step.positions,
            qkv if rotations is None else rotations,
            query_norm,
            key_norm,
            facts.epsilon,
            self._limit,
            GROUP=group,
            KV_HEADS=facts.kv_heads,
            HEAD_DIM=facts.head_dim,
            PAGE_SIZE=self._shape.page_size,
            PAGE_STRIDE=pages.stride,
            NORMED=head_norms is not None,
            ROTATED=rotations is not None,
            QUANTISED=pages.quantised,
            ROWS=rows,
            BLOCK_D=columns,
            num_warps=max(1, min(8, rows * columns // 256)),
            enable_fp_fusion=True,
        )
        return queries


def rotation_table(rope: Rope, head_dim: int, positions: int) -> torch.Tensor:
    """Cosines, then sines, of every position: float32 [positions, head size]."""
    frequencies = torch.tensor(rope.frequencies(head_dim), dtype=torch.float32)
    angles = torch.arange(positions, dtype=torch.float32)[:, None] * frequencies
    return torch.cat((angles.cos(), angles.sin()), -1)
