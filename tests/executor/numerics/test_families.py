"""Tiny random models of each family equal transformers in float32, prefilled in pieces and decoded from pages."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from executor.numerics.comparison import LEVELS, decoder_of, expect
from executor.numerics.driving import Answer, Asked, Driver, Way

from noria.proto.sampling import Sampling
from noria.services.executor.cpu.native.operations import NativeOperations
from noria.services.executor.model.operations import in_turn

SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "initializer_range": 0.15,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
TYPES = ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"]
CAPS = {"attn_logit_softcapping": 20.0, "final_logit_softcapping": 15.0}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 48}
FAMILIES = [
    pytest.param("Llama", {"tie_word_embeddings": True}, id="llama, tied"),
    pytest.param("Llama", {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 6}, id="llama, biases"),
    pytest.param("Llama", {"rope_parameters": LLAMA3}, id="llama 3 positions"),
    pytest.param(
        "Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 5e4, "factor": 2.0}}, id="linear positions"
    ),
    pytest.param("Mistral", {"sliding_window": None}, id="mistral"),
    pytest.param("Qwen2", {"num_key_value_heads": 1}, id="qwen2"),
    pytest.param("Qwen3", {"tie_word_embeddings": True}, id="qwen3"),
    pytest.param("Mistral", {"sliding_window": 24}, id="mistral, sliding"),
    pytest.param(
        "Qwen2", {"sliding_window": 50, "use_sliding_window": True, "max_window_layers": 1}, id="qwen2, hybrid"
    ),
    pytest.param("Gemma2", {"sliding_window": 24, "query_pre_attn_scalar": 24, **CAPS}, id="gemma 2"),
    pytest.param("Gemma3Text", {"sliding_window": 24, "layer_types": TYPES, "num_hidden_layers": 4}, id="gemma 3"),
    pytest.param("Mixtral", {"num_local_experts": 5, "sliding_window": None}, id="mixtral"),
    pytest.param("Mixtral", {"num_local_experts": 3, "sliding_window": 40}, id="mixtral, sliding"),
    pytest.param("Phi3", {}, id="phi 3"),
    pytest.param("Phi3", {"sliding_window": 30, "tie_word_embeddings": True}, id="phi 3, sliding"),
    pytest.param("Qwen2Moe", {**EXPERTS, "shared_expert_intermediate_size": 64}, id="qwen2 moe"),
    pytest.param("Qwen3Moe", {**EXPERTS, "norm_topk_prob": True, "mlp_only_layers": [1]}, id="qwen3 moe"),
]
KERNELS = ["", *LEVELS[-1:]]

pytestmark = pytest.mark.usefixtures("one_thread")


def build(name: str, options: dict[str, Any], folder: Path) -> Any:
    import transformers

    torch.manual_seed(5)
    config = getattr(transformers, f"{name}Config")(**{**SIZES, **options})
    config._attn_implementation = "eager"  # the only one that bounds scores in Gemma 2
    model = getattr(transformers, f"{name.removesuffix('Text')}ForCausalLM")(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # biases are zero and norms one at first, which would hide a mistake
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize(("name", "options"), FAMILIES)
def test_a_tiny_model_of_the_family_equals_transformers(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    model = build(name, options, tmp_path)
    generator = torch.Generator().manual_seed(3)
    prompts = [tuple(torch.randint(2, 300, (count,), generator=generator).tolist()) for count in (1, 40, 300)]
    expected = expect(model, prompts, 6)
    asked = [Asked(prompt, Sampling(temperature=0.0, max_tokens=6)) for prompt in prompts]
    for level in KERNELS:
        answers = Driver(decoder_of(tmp_path, torch.float32, level), Way(max_batch_tokens=37, every=1), 1024).run(asked)
        for answer, want in zip(answers, expected, strict=True):
            certain = want.certain()
            assert certain > 0
            assert answer.ids[:certain] == want.ids[:certain]
            for position in range(certain):
                assert (answer.logits[position] - want.logits[position]).abs().max() < 1e-4


PRESSED = [
    pytest.param("Mistral", {"sliding_window": 24}, 11, id="sliding"),
    pytest.param("Gemma2", {"sliding_window": 24, **CAPS}, 30, id="capped"),
    pytest.param("Gemma3Text", {"sliding_window": 24, "layer_types": TYPES, "num_hidden_layers": 4}, 17, id="hybrid"),
    pytest.param("Qwen3", {}, 28, id="full"),
    pytest.param("Mixtral", {"num_local_experts": 5}, 28, id="experts"),
]


@pytest.mark.parametrize("host_slots", [0, 40], ids=["reset", "swapped"])
@pytest.mark.parametrize(("name", "options", "chunks"), PRESSED)
def test_tokens_equal_transformers_when_the_pool_is_too_small_for_all(
    name: str, options: dict[str, Any], chunks: int, host_slots: int, tmp_path: Path
) -> None:
    model = build(name, options, tmp_path)
    generator = torch.Generator().manual_seed(4)
    lengths = (30, 180, 45, 31, 12, 240)
    prompts = [tuple(torch.randint(2, 300, (count,), generator=generator).tolist()) for count in lengths]
    expected = expect(model, prompts, 40)
    asked = [Asked(prompt, Sampling(temperature=0.0, max_tokens=40)) for prompt in prompts]
    way = Way(max_batch_tokens=37, num_blocks=chunks, host_slots=host_slots)
    for level in KERNELS:
        driver = Driver(decoder_of(tmp_path, torch.float32, level), way, 1024)
        answers = driver.run(asked)
        counters = driver.core.state.counters
        assert (counters.swaps_in if host_slots else counters.resets) > 0, "the pool was large enough for all"
        for answer, want in zip(answers, expected, strict=True):
            certain = want.certain()
            assert answer.ids[:certain] == want.ids[:certain]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param("Gemma2", {"sliding_window": 24, **CAPS}, id="capped, hybrid"),
        pytest.param("Gemma3Text", {"sliding_window": 24, "layer_types": TYPES, "num_hidden_layers": 4}, id="hybrid"),
        pytest.param("Mixtral", {"num_local_experts": 5, "sliding_window": 40}, id="experts"),
    ],
)
@pytest.mark.parametrize("cache_dtype", ["", "int8", "float16"])
def test_a_step_has_the_same_bits_alone_and_together(
    name: str, options: dict[str, Any], cache_dtype: str, tmp_path: Path
) -> None:
    build(name, options, tmp_path)
    generator = torch.Generator().manual_seed(4)
    prompts = [tuple(torch.randint(2, 300, (count,), generator=generator).tolist()) for count in (2, 33, 280, 290)]
    asked = [Asked(prompt, Sampling(temperature=0.0, max_tokens=12)) for prompt in prompts]
    for level in KERNELS:
        decoder = decoder_of(tmp_path, torch.float32, level)
        assert decoder.batch_invariant
        alone = Driver(decoder, Way(every=-1, cache_dtype=cache_dtype), 1024).run(asked)
        together = Driver(decoder, Way(max_batch_tokens=19, every=1, cache_dtype=cache_dtype), 1024).run(asked)
        same_bits(alone, together)


@pytest.mark.skipif(not LEVELS, reason="the kernels are not built")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param("Llama", {"attention_bias": True, "mlp_bias": True}, id="biases"),
        pytest.param("Gemma3Text", {"sliding_window": 24, "layer_types": TYPES, "num_hidden_layers": 4}, id="gemma 3"),
        pytest.param("Qwen3Moe", {**EXPERTS, "mlp_only_layers": [0, 2]}, id="dense and experts"),
    ],
)
def test_a_layer_in_one_call_has_the_same_bits_as_operation_by_operation(
    name: str, options: dict[str, Any], dtype: torch.dtype, tmp_path: Path
) -> None:
    build(name, options, tmp_path)
    asked = [Asked(tuple(range(2, 2 + length)), Sampling(temperature=0.0, max_tokens=5)) for length in (3, 90, 31)]
    found = []
    for whole in (True, False):
        driver = Driver(decoder_of(tmp_path, dtype, LEVELS[-1], "int8"), Way(every=1), 1024)
        operations = driver.engine._operations
        assert isinstance(operations, NativeOperations)
        if not whole:
            operations.layers = partial(in_turn, operations)  # type: ignore[method-assign]
        found.append(driver.run(asked))
    same_bits(*found)


def same_bits(one: list[Answer], other: list[Answer]) -> None:
    for a, b in zip(one, other, strict=True):
        assert a.ids == b.ids
        assert all(torch.equal(a.logits[position], b.logits[position]) for position in range(len(a.ids)))


def test_a_sharded_checkpoint_is_read(tmp_path: Path) -> None:
    from executor.numerics.driving import Way

    model = build("Llama", {}, tmp_path / "whole")
    model.save_pretrained(tmp_path / "shards", max_shard_size="50KB")
    assert (tmp_path / "shards" / "model.safetensors.index.json").is_file()
    asked = [Asked((5, 6, 7), Sampling(temperature=0.0, max_tokens=3))]
    whole, shards = (
        Driver(decoder_of(tmp_path / name, torch.float32), Way(), 1024).run(asked)[0] for name in ("whole", "shards")
    )
    assert whole.ids == shards.ids
    assert torch.equal(whole.logits[2], shards.logits[2])
