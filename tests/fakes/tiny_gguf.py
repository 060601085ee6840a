"""A GGUF file of a tiny random llama, with whatever is to be wrong with it, written in milliseconds."""

from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFWriter, quantize
from numpy.typing import NDArray

HIDDEN, INNER, HEADS, KV_HEADS, VOCABULARY = 64, 96, 4, 2, 40
KEYS = HIDDEN // HEADS * KV_HEADS
SHAPES = {
    "token_embd": (VOCABULARY, HIDDEN),
    "blk.0.attn_q": (HIDDEN, HIDDEN),
    "blk.0.attn_k": (KEYS, HIDDEN),
    "blk.0.attn_v": (KEYS, HIDDEN),
    "blk.0.attn_output": (HIDDEN, HIDDEN),
    "blk.0.ffn_gate": (INNER, HIDDEN),
    "blk.0.ffn_up": (INNER, HIDDEN),
    "blk.0.ffn_down": (HIDDEN, INNER),
}
NORMS = ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm")


def write_tiny_gguf(
    path: Path,
    kinds: Mapping[str, Kind] | None = None,
    *,
    names: Mapping[str, str] | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    without: Collection[str] = (),
    blocks: int | None = 1,
    parts: int = 1,
) -> Path:
    """A llama of one layer; weights that `kinds` does not name are float32.

    names: other names of tensors. shapes: of other or further tensors. without: tensors to leave out. blocks: how many the
    file says it has, or that it does not say. parts: of how many files it says to be one.
    """
    writer = GGUFWriter(path, "llama")
    writer.add_name("tiny")
    if blocks is not None:
        writer.add_block_count(blocks)
        writer.add_context_length(64)
        writer.add_embedding_length(HIDDEN)
        writer.add_feed_forward_length(INNER)
        writer.add_head_count(HEADS)
        writer.add_head_count_kv(KV_HEADS)
        writer.add_layer_norm_rms_eps(1e-5)
    if parts > 1:
        writer.add_uint16("split.count", parts)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([chr(ord("!") + index) for index in range(VOCABULARY - 1)] + ["!#"])
    writer.add_token_types([1] * VOCABULARY)
    writer.add_token_merges(["! #"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    for index, (name, shape) in enumerate({**SHAPES, **dict.fromkeys(NORMS, (HIDDEN,)), **(shapes or {})}.items()):
        if name in without:
            continue
        made: NDArray[np.float32] = np.random.default_rng(index).standard_normal(shape, dtype=np.float32)
        kind = (kinds or {}).get(name, Kind.F32)
        called = (names or {}).get(name, name)
        writer.add_tensor(f"{called}.weight", quantize(made, kind) if kind != Kind.F32 else made, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
