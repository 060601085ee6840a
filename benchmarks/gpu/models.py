"""Models to check a GPU with: a small one of each family, and the shapes of a 1B and an 8B Llama."""

from pathlib import Path
from typing import Any, Final

import torch

SMALL = {
    "vocab_size": 320,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
}
FAMILIES: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "llama": ("Llama", {"tie_word_embeddings": True}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {}),
    "mistral, sliding": ("Mistral", {"sliding_window": 24}),
    "gemma 2": ("Gemma2", {"sliding_window": 24, "query_pre_attn_scalar": 32, "attn_logit_softcapping": 20.0}),
    "gemma 3": (
        "Gemma3Text",
        {"sliding_window": 24, "layer_types": ["sliding_attention", "full_attention"], "query_pre_attn_scalar": 32},
    ),
    "phi 3": ("Phi3", {"pad_token_id": 0}),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "sliding_window": None}),
    "qwen3 moe": ("Qwen3Moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}),
}
LLAMAS: Final = {
    "1B": {
        "vocab_size": 128256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "tie_word_embeddings": True,
    },
    "8B": {
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "tie_word_embeddings": False,
    },
}


def tiny(folder: Path, family: str, options: dict[str, Any]) -> Path:
    """A model folder of a family, with random weights."""
    import transformers

    torch.manual_seed(5)
    config = getattr(transformers, f"{family}Config")(**{**SMALL, **options})
    model = getattr(transformers, f"{family.removesuffix('Text')}ForCausalLM")(config).float().eval()
    model.save_pretrained(folder)
    return folder
