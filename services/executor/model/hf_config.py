"""The keys of a checkpoint's config.json that a decoder depends on, in old and new spellings."""

from typing import Final

import msgspec

SLIDING: Final = "sliding_attention"


class HFRopeParameters(msgspec.Struct):
    """Rotary parameters: one set for all layers, or one for each attention type."""

    rope_theta: float | None = None
    rope_type: str | None = None
    type: str | None = None
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int | None = None
    partial_rotary_factor: float | None = None
    full_attention: "HFRopeParameters | None" = None
    sliding_attention: "HFRopeParameters | None" = None


class HFConfig(msgspec.Struct):
    """config.json as Hugging Face models publish it; a key that is absent has the default of transformers' Llama."""

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    hidden_act: str = "silu"
    hidden_activation: str | None = None
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 2048
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool | None = None
    rope_theta: float | None = None
    rope_local_base_freq: float = 10000.0
    rope_scaling: HFRopeParameters | None = None
    rope_parameters: HFRopeParameters | None = None
    sliding_window: int | None = None
    use_sliding_window: bool = False
    max_window_layers: int = 0
    sliding_window_pattern: int = 6
    layer_types: list[str] | None = None
    use_bidirectional_attention: bool | None = None
    query_pre_attn_scalar: float = 256
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None
    num_local_experts: int | None = None
    num_experts_per_tok: int | None = None
    num_experts: int | None = None
    moe_intermediate_size: int | None = None
    shared_expert_intermediate_size: int = 5632
    decoder_sparse_step: int = 1
    mlp_only_layers: list[int] | None = None
    norm_topk_prob: bool = False
    qkv_bias: bool = True
    partial_rotary_factor: float | None = None


def sliding_layers(published: HFConfig) -> list[bool]:
    """By layer, whether it attends to a sliding window only."""
    layers = range(published.num_hidden_layers)
    if published.model_type in ("mistral", "mixtral", "phi3"):
        return [published.sliding_window is not None for _ in layers]
    if published.model_type == "qwen3_moe":
        return [published.use_sliding_window for _ in layers]
    if published.layer_types is not None:
        return [kind == SLIDING for kind in published.layer_types]
    match published.model_type:
        case "qwen2" | "qwen3":
            return [published.use_sliding_window and layer >= published.max_window_layers for layer in layers]
        case "qwen2_moe":
            return [
                published.use_sliding_window and layer % 2 == 0 and layer < (published.max_window_layers or 28)
                for layer in layers
            ]
        case "gemma2":
            return [layer % 2 == 0 for layer in layers]
        case "gemma3_text":
            return [(layer + 1) % published.sliding_window_pattern != 0 for layer in layers]
        case _:
            return [False for _ in layers]
