"""One decoder for all Llama-shaped families: weights from safetensors, fused projections, a ragged forward pass."""

from dataclasses import dataclass

import torch

from noria.services.executor.checkpoint import Checkpoint
from noria.services.executor.families import Architecture
from noria.services.executor.linear import Floors, Linear
from noria.services.executor.operations import Operations
from noria.services.executor.step import Step


@dataclass(slots=True, eq=False)
class Layer:
    """One layer's weights; head_norms are those of queries and keys, where the family norms heads."""

    input_norm: torch.Tensor
    qkv: Linear
    head_norms: tuple[torch.Tensor, torch.Tensor] | None
    out: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear


class Decoder:
    """The weights of a model. `rows_max` and `samples_max` bound the query tokens and sampled rows of a step."""

    def __init__(
        self, architecture: Architecture, checkpoint: Checkpoint, dtype: torch.dtype, rows_max: int, samples_max: int
    ) -> None:
        self.architecture = architecture
        self.dtype = dtype
        self._rows_max = rows_max
        self._floors = Floors()
        size = (architecture.vocabulary, architecture.hidden)
        self._embedding = checkpoint.tensor("model.embed_tokens.weight", size, dtype)
        self._layers = [self._load(checkpoint, f"model.layers.{i}.") for i in range(architecture.layers)]
        self._norm = checkpoint.tensor("model.norm.weight", (architecture.hidden,), dtype)
        # Logits are float32, whatever the model: bfloat16 logits tie in 3 of 100 greedy steps.
        tied = architecture.tied or "lm_head.weight" not in checkpoint
        head = self._embedding if tied else checkpoint.tensor("lm_head.weight", size, dtype)
        self._head = self._linear(head.float(), None, samples_max)

    @property
    def steady(self) -> bool:
        """Whether every matrix product gives a row the same bits in any batch."""
        return self._floors.steady

    @property
    def nbytes(self) -> int:
        """Bytes of all weights."""
        each = [(layer.qkv, layer.out, layer.gate_up, layer.down) for layer in self._layers]
        return self._embedding.nbytes + self._head.nbytes + sum(linear.nbytes for four in each for linear in four)

    def logits(self, operations: Operations, step: Step) -> torch.Tensor | None:
        """Run a step; returns float32 logits [sampled rows, vocabulary], or None when nothing is sampled."""
        x = self._embedding.index_select(0, step.token_ids)
        residual: torch.Tensor | None = None
        for index, layer in enumerate(self._layers):
            x, residual = operations.add_norm(x, residual, layer.input_norm)
            queries = operations.rotate_write(index, operations.linear(x, layer.qkv), layer.head_norms, step)
            x = operations.linear(operations.attention(index, queries, step), layer.out)
            x, residual = operations.add_norm(x, residual, layer.mlp_norm)
            x = operations.linear(operations.gated(operations.linear(x, layer.gate_up)), layer.down)
        if step.sample_rows is None:
            return None
        assert residual is not None
        rows, rest = x.index_select(0, step.sample_rows), residual.index_select(0, step.sample_rows)
        normed, _ = operations.add_norm(rows, rest, self._norm)
        return operations.linear(normed.float(), self._head)

    def _load(self, checkpoint: Checkpoint, prefix: str) -> Layer:
        facts = self.architecture
        query, key = facts.heads * facts.head_dim, facts.kv_heads * facts.head_dim
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        qkv = [(f"{attention}{name}_proj", size) for name, size in (("q", query), ("k", key), ("v", key))]
        gate_up = [(f"{mlp}{name}_proj", facts.intermediate) for name in ("gate", "up")]
        head_norms = None
        if facts.head_norm:
            size = (facts.head_dim,)
            head_norms = (
                checkpoint.tensor(attention + "q_norm.weight", size, self.dtype),
                checkpoint.tensor(attention + "k_norm.weight", size, self.dtype),
            )
        norm = (facts.hidden,)
        return Layer(
            input_norm=checkpoint.tensor(prefix + "input_layernorm.weight", norm, self.dtype),
            qkv=self._fused(checkpoint, qkv, facts.hidden, bias=facts.qkv_bias),
            head_norms=head_norms,
            out=self._fused(checkpoint, [(attention + "o_proj", facts.hidden)], query, bias=facts.out_bias),
            mlp_norm=checkpoint.tensor(prefix + "post_attention_layernorm.weight", norm, self.dtype),
            gate_up=self._fused(checkpoint, gate_up, facts.hidden, bias=facts.mlp_bias),
            down=self._fused(checkpoint, [(mlp + "down_proj", facts.hidden)], facts.intermediate, bias=facts.mlp_bias),
        )

    def _fused(self, checkpoint: Checkpoint, parts: list[tuple[str, int]], inputs: int, *, bias: bool) -> Linear:
        weights = [checkpoint.tensor(f"{name}.weight", (outputs, inputs), self.dtype) for name, outputs in parts]
        biases = [checkpoint.tensor(f"{name}.bias", (outputs,), self.dtype) for name, outputs in parts] if bias else []
        return self._linear(torch.cat(weights), torch.cat(biases) if biases else None, self._rows_max)

    def _linear(self, weight: torch.Tensor, bias: torch.Tensor | None, rows_max: int) -> Linear:
        return Linear(weight, bias, self._floors.of(weight, rows_max))
