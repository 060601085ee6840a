"""A tiny random Llama with a byte-level tokenizer and a chat template, written as an ordinary model folder.

It starts in a moment and computes in microseconds, so whole stacks can be started, loaded and killed in tests.
"""

import json
from pathlib import Path

CHAT_TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message['role'] }}\n{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def build_tiny_model(folder: Path, *, max_model_tokens: int = 2048, seed: int = 0, window: int | None = None) -> Path:
    """Write the model into `folder` and return it. window: of its first layer, as a Gemma 3; else all see everything."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM

    folder.mkdir(parents=True, exist_ok=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    specials = ["<|start|>", "<|end|>"]
    vocabulary = {token: index for index, token in enumerate([*specials, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(specials)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>", "bos_token": "<|start|>"})
    )
    torch.manual_seed(seed)
    sizes = {
        "vocab_size": len(vocabulary),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": max_model_tokens,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 1,
        "initializer_range": 0.3,
        "tie_word_embeddings": True,
    }
    if window is None:
        model = LlamaForCausalLM(LlamaConfig(**sizes)).float().eval()
    else:
        layers = ["sliding_attention", "full_attention"]
        config = Gemma3TextConfig(**sizes, sliding_window=window, layer_types=layers, query_pre_attn_scalar=16)
        model = Gemma3ForCausalLM(config).float().eval()
    model.save_pretrained(folder)
    return folder
