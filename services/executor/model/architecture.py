"""A decoder's parameters, read from a checkpoint's config.json: one set for all Llama-shaped families.

Decides which models our own decoder computes; a family or option that it does not know is named in the refusal.
"""

from pathlib import Path
from typing import Final

import msgspec

from noria.services.executor.model.hf_config import HFConfig, HFRopeParameters, sliding_layers
from noria.services.executor.model.rope import Rope
from noria.shared.errors import UserError

FAMILIES: Final = (
    "llama",
    "mistral",
    "mixtral",
    "phi3",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "gemma2",
    "gemma3_text",
)
"""`model_type` of what our own decoder computes; SmolLM and SmolLM2 call themselves llama."""

_ACTIVATIONS: Final = ("silu", "gelu_pytorch_tanh")


class UnknownDecoderError(UserError):
    """The model, or an option of it, is not one that the own decoder computes."""


class ExpertsConfig(msgspec.Struct, frozen=True):
    """Sizes of a mixture of experts. shared: inner size of the expert that every token takes, 0 without one.

    normed: the weights of a token's experts add up to 1. layers: which layers have them; the others are dense.
    """

    count: int
    per_token: int
    intermediate: int
    layers: tuple[bool, ...]
    normed: bool = True
    shared: int = 0


class Architecture(msgspec.Struct, frozen=True):
    """The parameters of a decoder: sizes, attention, norms, positions, experts.

    windows: by layer, how many tokens it sees, itself included; 0 is all. layer_ropes: index into ropes by layer.
    scale multiplies scores of queries and keys; caps bound scores and logits by cap * tanh(x / cap). norm_offset: norms
    multiply by 1 + weight, in float32. sandwich: what attention and MLP give is normed too. fused: projections of the same
    input are one tensor. tied: the head is the embedding.
    """

    family: str
    vocabulary: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    epsilon: float
    windows: tuple[int, ...]
    ropes: tuple[Rope, ...]
    layer_ropes: tuple[int, ...]
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    head_norm: bool
    tied: bool
    scale: float
    activation: str = "silu"
    score_cap: float | None = None
    logit_cap: float | None = None
    embedding_scale: float = 1.0
    norm_offset: bool = False
    sandwich: bool = False
    fused: bool = False
    experts: ExpertsConfig | None = None

    @property
    def query_group(self) -> int:
        """Query heads that share a key-value head."""
        return self.heads // self.kv_heads

    @property
    def key_width(self) -> int:
        """Numbers in one token's keys, or values, of one layer."""
        return self.kv_heads * self.head_dim


class _ModelType(msgspec.Struct):
    model_type: str = "unknown"


def architecture(folder: Path) -> Architecture:
    """Read a model folder's architecture. Raises UserError naming what cannot be served."""
    path = folder / "config.json"
    try:
        kind = msgspec.json.decode(path.read_bytes(), type=_ModelType).model_type
        if kind not in FAMILIES:
            raise UnknownDecoderError(f"{path}: model type {kind!r} is not one of {', '.join(FAMILIES)}")
        published = msgspec.json.decode(path.read_bytes(), type=HFConfig)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise UserError(f"{path} does not describe a decoder: {error}") from error
    return _architecture(published, path)


def _architecture(published: HFConfig, path: Path) -> Architecture:
    kind, gemma = published.model_type, published.model_type.startswith("gemma")
    bias = published.attention_bias and kind in ("llama", "qwen3", "qwen3_moe", "gemma2", "gemma3_text")
    head_dim = published.head_dim or published.hidden_size // published.num_attention_heads
    ropes = tuple(_rope(published, path, sliding=sliding) for sliding in (False, True))
    sliding = sliding_layers(published)
    return Architecture(
        family=kind,
        vocabulary=published.vocab_size,
        hidden=published.hidden_size,
        intermediate=published.intermediate_size,
        layers=published.num_hidden_layers,
        heads=published.num_attention_heads,
        kv_heads=published.num_key_value_heads or published.num_attention_heads,
        head_dim=head_dim,
        epsilon=published.rms_norm_eps,
        windows=_windows(published, sliding, path),
        ropes=ropes,
        layer_ropes=tuple(int(each and ropes[0] != ropes[1]) for each in sliding),
        qkv_bias=kind == "qwen2" or (kind == "qwen2_moe" and published.qkv_bias) or bias,
        out_bias=bias,
        mlp_bias=kind == "llama" and published.mlp_bias,
        head_norm=kind in ("qwen3", "qwen3_moe", "gemma3_text"),
        # What a config leaves out is as transformers has it.
        tied=gemma if published.tie_word_embeddings is None else published.tie_word_embeddings,
        scale=(published.query_pre_attn_scalar if gemma else head_dim) ** -0.5,
        activation=_activation(published, path),
        score_cap=published.attn_logit_softcapping if kind == "gemma2" else None,
        logit_cap=published.final_logit_softcapping if gemma else None,
        embedding_scale=published.hidden_size**0.5 if gemma else 1.0,
        norm_offset=gemma,
        sandwich=gemma,
        fused=kind == "phi3",
        experts=_experts(published),
    )


def _experts(published: HFConfig) -> ExpertsConfig | None:
    layers = published.num_hidden_layers
    match published.model_type:
        case "mixtral":
            per_token, inner = published.num_experts_per_tok or 2, published.intermediate_size
            return ExpertsConfig(published.num_local_experts or 8, per_token, inner, (True,) * layers)
        case "qwen2_moe" | "qwen3_moe":
            second = published.model_type == "qwen2_moe"
            count = published.num_experts or published.num_local_experts or (60 if second else 128)
            step, dense = published.decoder_sparse_step, published.mlp_only_layers or []
            return ExpertsConfig(
                count,
                published.num_experts_per_tok or (4 if second else 8),
                published.moe_intermediate_size or (1408 if second else 768),
                tuple(layer not in dense and (layer + 1) % step == 0 for layer in range(layers)),
                published.norm_topk_prob,
                published.shared_expert_intermediate_size if second else 0,
            )
        case _:
            return None


def _activation(published: HFConfig, path: Path) -> str:
    gemma = published.model_type.startswith("gemma")
    name = (published.hidden_activation or "gelu_pytorch_tanh") if gemma else published.hidden_act
    if name not in _ACTIVATIONS:
        raise UnknownDecoderError(f"{path}: activation {name!r} is not one of {', '.join(_ACTIVATIONS)}")
    return name


def _windows(published: HFConfig, sliding: list[bool], path: Path) -> tuple[int, ...]:
    if published.use_bidirectional_attention:
        raise UserError(f"{path}: attention in both directions does not generate text and is not served")
    if len(sliding) != published.num_hidden_layers:
        raise UserError(f"{path}: {len(sliding)} layer types for {published.num_hidden_layers} layers")
    window = published.sliding_window
    if any(sliding) and (window is None or window < 1):
        raise UserError(f"{path}: layers slide, but sliding_window is {window}")
    return tuple(window if each and window else 0 for each in sliding)


def _rope(published: HFConfig, path: Path, *, sliding: bool) -> Rope:
    given = published.rope_parameters or published.rope_scaling or HFRopeParameters()
    theta = published.rope_theta
    if published.model_type == "gemma3_text":
        # One theta for each attention type; older configs name the local one apart, which no scaling stretches.
        theta = published.rope_local_base_freq if sliding else published.rope_theta or 1e6
        if published.rope_parameters is None and sliding:
            given = HFRopeParameters()
    given = (given.sliding_attention if sliding else given.full_attention) or given
    kind = given.rope_type or given.type or "default"
    if kind not in ("default", "linear", "llama3"):
        raise UnknownDecoderError(f"{path}: rotary positions are of another kind, {kind!r}")
    share = given.partial_rotary_factor or published.partial_rotary_factor or 1.0
    if published.model_type == "phi3" and share != 1:
        raise UnknownDecoderError(f"{path}: only a part of each head turns ({share:g})")
    default_theta = 1e6 if published.model_type == "mixtral" else 10000.0
    return Rope(
        theta=given.rope_theta or theta or default_theta,
        kind=kind,
        factor=given.factor,
        low_factor=given.low_freq_factor,
        high_factor=given.high_freq_factor,
        original_tokens=given.original_max_position_embeddings or published.max_position_embeddings,
    )
