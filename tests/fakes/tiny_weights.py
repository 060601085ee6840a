"""Random weights of a tiny Llama as a model folder, without a tokenizer, written in milliseconds."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

TINY: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-5,
}


def write_tiny_weights(folder: Path, *, seed: int = 0, **changes: Any) -> Path:
    """Write a folder of config.json and model.safetensors and return it. changes: of config keys."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {**TINY, **changes}
    (folder / "config.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(seed)

    def random(*size: int) -> torch.Tensor:
        return 0.3 * torch.randn(size, generator=generator)

    hidden, inner, size = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    tensors = {
        "model.embed_tokens.weight": random(config["vocab_size"], hidden),
        "model.norm.weight": torch.ones(hidden),
    }
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        tensors |= {
            f"{prefix}self_attn.q_proj.weight": random(queries, hidden),
            f"{prefix}self_attn.k_proj.weight": random(keys, hidden),
            f"{prefix}self_attn.v_proj.weight": random(keys, hidden),
            f"{prefix}self_attn.o_proj.weight": random(hidden, queries),
            f"{prefix}mlp.gate_proj.weight": random(inner, hidden),
            f"{prefix}mlp.up_proj.weight": random(inner, hidden),
            f"{prefix}mlp.down_proj.weight": random(hidden, inner),
            f"{prefix}input_layernorm.weight": torch.ones(hidden),
            f"{prefix}post_attention_layernorm.weight": torch.ones(hidden),
        }
    save_file(tensors, str(folder / "model.safetensors"))
    return folder
