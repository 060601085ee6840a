"""The decoder of all Llama-shaped families: weights, fused projections, and the forward pass of a ragged batch."""

import torch

from noria.services.executor.model.architecture import Architecture
from noria.services.executor.model.checkpoint import Checkpoint
from noria.services.executor.model.linear_layers import Linear, LinearFactory
from noria.services.executor.model.mlp import load_mlp
from noria.services.executor.model.operations import CpuOperations, DecoderLayer, StepOperations
from noria.services.executor.model.packed_weights import PackedWeights
from noria.services.executor.model.reference_linear import ReferenceLinearFactory
from noria.services.executor.model.required_tensors import RequiredLinearFactory, RequiredTensors
from noria.services.executor.model.weights import DecoderWeights
from noria.services.executor.plan.batch import Batch
from noria.services.executor.plan.limits import Integers
from noria.shared.model.weight_files import TensorShape


class Decoder:
    """The weights of a model. `rows_max` and `samples_max` bound the query tokens and sampled rows of a step.

    linear_factory: the kind of matrix linear_factory, plain PyTorch's where absent. packed: where weights are kept, if anywhere. device:
    where they compute, the processor where absent. unused: names of the checkpoint's tensors and files that it does not
    read. Raises UserError naming a tensor that is missing or of another shape.
    """

    def __init__(
        self,
        architecture: Architecture,
        checkpoint: Checkpoint,
        dtype: torch.dtype,
        rows_max: int,
        samples_max: int,
        linear_factory: LinearFactory | None = None,
        packed: PackedWeights | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.architecture = architecture
        self.dtype = dtype
        # Before anything is read: a model that lacks a tensor takes no memory, also where its packed weights are kept.
        self.unused = checkpoint.require(required_tensors(architecture))
        linear_factory, packed = linear_factory or ReferenceLinearFactory(dtype), packed or PackedWeights()
        weights = DecoderWeights(
            checkpoint, dtype, rows_max, linear_factory, packed, norm_offset=architecture.norm_offset, device=device
        )
        # Rounded as transformers rounds it: the checkpoint was trained so.
        self._embedding_scale = float(torch.tensor(architecture.embedding_scale).to(dtype))
        self._embedding, self._layers, self._norm, self._head = _load(weights, architecture, samples_max)
        self.linear_factory, self.batch_invariant, self.nbytes = (
            linear_factory,
            linear_factory.batch_invariant,
            weights.nbytes,
        )
        self.scratch_bytes = linear_factory.scratch_bytes(rows_max)

    def logits(self, operations: CpuOperations, batch: Batch, rows: Integers | None) -> torch.Tensor | None:
        """Run the step that was begun; returns float32 logits [rows, vocabulary] of some query rows, or None for None."""
        del batch  # the operations know it
        return self.forward(operations, sampled=rows is not None)

    def forward(self, operations: StepOperations, *, sampled: bool) -> torch.Tensor | None:
        """Run the step that was begun; returns float32 logits of its rows [rows, vocabulary] if it has any."""
        x = operations.embedded(self._embedding, self._embedding_scale)
        x, residual = operations.layers(self._layers, x)
        if not sampled:
            return None
        logits = operations.logits(x, residual, self._norm, self._head)
        cap = self.architecture.logit_cap
        return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)


def required_tensors(architecture: Architecture) -> dict[str, TensorShape]:
    """Shapes, by name, of all tensors that a decoder of this architecture reads."""
    requirements = RequiredTensors()
    linear_factory = RequiredLinearFactory(requirements)
    _load(
        DecoderWeights(requirements, torch.float32, 1, linear_factory, PackedWeights(), norm_offset=False),
        architecture,
        1,
    )
    return requirements.shapes


def _load(
    weights: DecoderWeights, facts: Architecture, samples_max: int
) -> tuple[torch.Tensor, list[DecoderLayer], torch.Tensor, Linear]:
    """Embedding, layers, last norm and head."""
    size = (facts.vocabulary, facts.hidden)
    return (
        weights.table("model.embed_tokens.weight", size),
        [_load_layer(weights, facts, layer) for layer in range(facts.layers)],
        weights.norm("model.norm.weight", facts.hidden),
        # Logits are float32, whatever the model: bfloat16 logits tie in 3 of 100 greedy steps.
        weights.head("model.embed_tokens" if facts.tied else "lm_head", size, samples_max),
    )


def _load_layer(weights: DecoderWeights, facts: Architecture, layer: int) -> DecoderLayer:
    prefix = f"model.layers.{layer}."
    query, key = facts.heads * facts.head_dim, facts.key_width
    attention = prefix + "self_attn."
    qkv = [(f"{attention}{name}_proj", size) for name, size in (("q", query), ("k", key), ("v", key))]
    if facts.fused:
        qkv = [(attention + "qkv_proj", query + 2 * key)]
    head_norms = None
    if facts.head_norm:
        head_norms = (
            weights.norm(attention + "q_norm.weight", facts.head_dim),
            weights.norm(attention + "k_norm.weight", facts.head_dim),
        )
    before_mlp = "pre_feedforward_layernorm" if facts.sandwich else "post_attention_layernorm"

    def after(name: str) -> torch.Tensor | None:
        return weights.norm(f"{prefix}{name}.weight", facts.hidden) if facts.sandwich else None

    return DecoderLayer(
        input_norm=weights.norm(prefix + "input_layernorm.weight", facts.hidden),
        qkv=weights.fused(qkv, facts.hidden, bias=facts.qkv_bias),
        head_norms=head_norms,
        out=weights.fused([(attention + "o_proj", facts.hidden)], query, bias=facts.out_bias),
        after_attention=after("post_attention_layernorm"),
        mlp_norm=weights.norm(f"{prefix}{before_mlp}.weight", facts.hidden),
        mlp=load_mlp(weights, facts, prefix, layer),
        after_mlp=after("post_feedforward_layernorm"),
    )
