"""Models that transformers computes over our cache: equal to its own generate, however they are scheduled, or refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from executor.numerics.comparison import expect
from executor.numerics.driving import Asked, Driver, Way
from safetensors.torch import load_file, save_file

from noria.proto.sampling import Sampling
from noria.services.executor.config import ExecutorConfig
from noria.services.executor.cpu.backend import choose_backend
from noria.services.executor.cpu.hosted_trial import trial_prompts, verify
from noria.services.executor.cpu.loading import LoadedWeights, load, make_model
from noria.services.executor.cpu.native.library import levels
from noria.services.executor.hf.hosted_attention import window_of
from noria.services.executor.hf.hosted_model import HostedModel, HostedOptions, open_network
from noria.services.executor.model.reference_linear import ReferenceLinearFactory
from noria.shared.config.config import ModelSettings
from noria.shared.errors import UserError

CONTEXT = 512
UP = "model.layers.1.mlp.up_proj.weight"
SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.15,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
TYPES = ["sliding_attention", "full_attention", "sliding_attention"]
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 128}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0 + i / 8 for i in range(8)],
    "long_factor": [2.0 + i for i in range(8)],
    "original_max_position_embeddings": 128,
}
FAMILIES = [
    pytest.param("GPTNeoX", {"rotary_pct": 0.5}, id="gpt-neox"),
    pytest.param("GPT2", {}, id="gpt-2, learned positions"),
    pytest.param("OPT", {"ffn_dim": 128, "word_embed_proj_dim": 96}, id="opt, offset positions"),
    pytest.param("Olmo2", {}, id="olmo 2"),
    pytest.param("Starcoder2", {"sliding_window": 40}, id="starcoder 2, sliding"),
    pytest.param("Cohere2", {"logit_scale": 1.0, "sliding_window": 24, "layer_types": TYPES}, id="cohere 2, hybrid"),
    pytest.param("StableLm", {"use_parallel_residual": True}, id="stablelm"),
    pytest.param("Granite", {"attention_multiplier": 0.2, "logits_scaling": 2.0}, id="granite"),
    pytest.param("SmolLM3", {"no_rope_layers": [1, 0, 1]}, id="smollm 3, a layer without positions"),
    pytest.param("Olmoe", {"num_experts": 6, "num_experts_per_tok": 2}, id="olmoe"),
    pytest.param("Llama", {"rope_parameters": YARN}, id="llama, yarn"),
    pytest.param("Phi3", {"rope_parameters": LONG, "original_max_position_embeddings": 128}, id="phi 3, longrope"),
]


def build(name: str, options: dict[str, Any], folder: Path) -> Any:
    import transformers

    torch.manual_seed(5)
    config = getattr(transformers, f"{name}Config")(**{**SIZES, **options})
    config._attn_implementation = "eager"
    model = getattr(transformers, "GPT2LMHeadModel" if name == "GPT2" else f"{name}ForCausalLM")(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    return model


def configured(folder: Path, kernels: str = "reference", **changes: Any) -> ExecutorConfig:
    values: dict[str, Any] = {
        "model": ModelSettings(name=str(folder), dtype="float32"),
        "max_slots": 4,
        "max_batch_tokens": 64,
        "page_size": 16,
        "num_blocks": 64,
        "max_memory_percent": 0.5,
        "threads": 1,
        "kernels": kernels,
        "keep_packed": False,
    }
    return ExecutorConfig(**{**values, **changes})


def made(folder: Path, kernels: str = "reference", dtype: torch.dtype = torch.float32, **changes: Any) -> LoadedWeights:
    config = configured(folder, kernels, **changes)
    return make_model(config, folder, dtype, CONTEXT, choose_backend(kernels, config.quantization), 1)


def random_prompts(*lengths: int) -> list[tuple[int, ...]]:
    generator = torch.Generator().manual_seed(3)
    return [tuple(torch.randint(2, 300, (count,), generator=generator).tolist()) for count in lengths]


@pytest.mark.parametrize("kernels", ["reference", *levels()[-1:]])
@pytest.mark.parametrize(("name", "options"), FAMILIES)
def test_a_tiny_model_of_another_family_equals_transformers(
    name: str, options: dict[str, Any], kernels: str, tmp_path: Path
) -> None:
    model = build(name, options, tmp_path)
    # Below its first context, longrope turns keys otherwise than in the longer sequences that are served.
    prompts = random_prompts(140, 200) if "Phi3" in name else random_prompts(1, 40, 200)
    expected = expect(model, prompts, 6)
    found = made(tmp_path, kernels)
    assert found.hosted and found.name.startswith("transformers (")
    asked = [Asked(prompt, Sampling(temperature=0.0, max_tokens=6)) for prompt in prompts]
    answers = Driver(found.model, Way(max_batch_tokens=37, every=1), CONTEXT).run(asked)
    for answer, want in zip(answers, expected, strict=True):
        certain = want.certain()
        assert certain > 0
        assert answer.ids[:certain] == want.ids[:certain]
        for position in range(certain):
            assert (answer.logits[position] - want.logits[position]).abs().max() < 2e-4


@pytest.mark.parametrize(
    ("name", "options", "chunks", "host_slots"),
    [
        pytest.param(*FAMILIES[0].values, 16, 0, id="full, reset"),
        pytest.param(*FAMILIES[5].values, 17, 40, id="hybrid, swapped"),
    ],
)
def test_tokens_equal_transformers_when_the_pool_is_too_small_for_all(
    name: str, options: dict[str, Any], chunks: int, host_slots: int, tmp_path: Path
) -> None:
    model = build(name, options, tmp_path)
    prompts = random_prompts(30, 120, 45, 31, 12, 60)
    expected = expect(model, prompts, 40)
    asked = [Asked(prompt, Sampling(temperature=0.0, max_tokens=40)) for prompt in prompts]
    way = Way(max_batch_tokens=37, num_blocks=chunks, host_slots=host_slots)
    driver = Driver(made(tmp_path).model, way, CONTEXT)
    answers = driver.run(asked)
    counters = driver.core.state.counters
    assert (counters.swaps_in if host_slots else counters.resets) > 0, "the pool was large enough: nothing was tested"
    for answer, want in zip(answers, expected, strict=True):
        certain = want.certain()
        assert answer.ids[:certain] == want.ids[:certain]


@pytest.mark.parametrize("kernels", ["reference", *levels()[-1:]])
@pytest.mark.parametrize(("name", "options"), [FAMILIES[1].values, FAMILIES[5].values])
def test_what_is_called_steady_has_the_same_bits_alone_and_together(
    name: str, options: dict[str, Any], kernels: str, tmp_path: Path
) -> None:
    build(name, options, tmp_path)
    model = made(tmp_path, kernels, torch.bfloat16).model
    assert model.batch_invariant
    asked = [Asked(prompt, Sampling(temperature=0.0, max_tokens=8)) for prompt in random_prompts(2, 33, 180)]
    alone = Driver(model, Way(every=-1), CONTEXT).run(asked)
    together = Driver(model, Way(max_batch_tokens=19, every=1), CONTEXT).run(asked)
    for one, other in zip(alone, together, strict=True):
        assert one.ids == other.ids
        assert all(torch.equal(one.logits[position], other.logits[position]) for position in range(len(one.ids)))


def test_matrices_that_pytorch_multiplies_are_not_called_steady(tmp_path: Path) -> None:
    build("Olmoe", {"num_experts": 6, "num_experts_per_tok": 2}, tmp_path)
    assert not made(tmp_path).model.batch_invariant


@pytest.mark.skipif(not levels(), reason="the kernels are not built")
def test_weights_may_be_int8(tmp_path: Path) -> None:
    build("Olmo2", {}, tmp_path)
    half = made(tmp_path, levels()[-1], torch.bfloat16).model
    eighth = made(tmp_path, levels()[-1], torch.bfloat16, quantization="int8").model
    assert eighth.linear_factory.nbytes < 0.7 * half.linear_factory.nbytes


def test_the_executor_loads_it_like_any_model(tmp_path: Path) -> None:
    build("GPT2", {"n_positions": 256, "max_position_embeddings": 256}, tmp_path)
    engine, loaded = load(configured(tmp_path))
    assert loaded.kernels.startswith("transformers (gpt2) over plain PyTorch")
    assert loaded.geometry.max_model_tokens == 256
    assert isinstance(engine.decoder, HostedModel)
    assert {share.name: share.bytes for share in loaded.memory.shares}["weights"] == engine.decoder.nbytes > 0


REFUSED = [
    pytest.param("Mamba", {}, "takes no positions", id="mamba, a state"),
    pytest.param("Bloom", {}, "takes no positions", id="bloom, biases by distance"),
    pytest.param("Falcon", {}, "attention interface", id="falcon, attention of its own"),
    pytest.param(
        "GptOss", {"num_local_experts": 4, "head_dim": 16, "layer_types": TYPES}, "sinks", id="gpt-oss, sinks"
    ),
    pytest.param("DeepseekV3", {"first_k_dense_replace": 3}, "different sizes", id="deepseek, latent attention"),
    pytest.param("RecurrentGemma", {}, "layers of another kind", id="recurrent gemma"),
    pytest.param("GPTJ", {"rotary_dim": 64}, "forward pass fails", id="a config that does not fit together"),
]


@pytest.mark.parametrize(("name", "options", "reason"), REFUSED)
def test_what_the_paged_cache_cannot_hold_is_refused_by_name(
    name: str, options: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    build(name, options, tmp_path)
    with pytest.raises(UserError, match=f"config.json: model type .* transformers cannot compute it .*: .*{reason}"):
        made(tmp_path)


def test_a_model_whose_logits_differ_from_its_plain_forward_pass_is_refused(tmp_path: Path) -> None:
    build("Olmo2", {}, tmp_path)
    wanted = HostedOptions(tmp_path, torch.float32, 64, 4, CONTEXT)
    opened = open_network(wanted)
    prompts = trial_prompts(300, CONTEXT)
    expected = [opened.plain(prompt) for prompt in prompts]
    # As if each token of the longer sequence saw the one before as the latest.
    expected[0] = expected[0].roll(1, 0)
    with pytest.raises(UserError, match=r"of their spread off its plain forward pass \(0\.001 may be\)"):
        verify(opened.hosted(wanted, ReferenceLinearFactory(torch.float32)), prompts, expected, 1e-3)


def changed(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    """Write a tiny model, and its tensors again as `change` leaves them."""
    build("Olmo2", {}, folder)
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def test_missing_weights_are_refused_by_name(tmp_path: Path) -> None:
    changed(tmp_path, lambda weights: weights.pop(UP))
    with pytest.raises(UserError, match=rf"the model folder .* lacks {UP}; "):
        made(tmp_path)


def test_weights_of_another_shape_are_refused_with_both_shapes(tmp_path: Path) -> None:
    changed(tmp_path, lambda weights: weights.update({UP: torch.zeros(96, 160)}))
    with pytest.raises(UserError, match=rf"{UP} in .* has shape \(96, 160\), expected \(160, 96\); "):
        made(tmp_path)


def test_weights_that_are_not_used_are_named(tmp_path: Path) -> None:
    changed(tmp_path, lambda weights: weights.update({"visual.weight": torch.zeros(2)}))
    assert made(tmp_path).unused == ("visual.weight",)


def test_weights_that_are_cut_short_are_refused_with_both_sizes(tmp_path: Path) -> None:
    build("Olmo2", {}, tmp_path)
    path = tmp_path / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(UserError, match=rf"model\.safetensors has {len(whole) - 1} bytes, expected {len(whole)}: "):
        made(tmp_path)


def test_what_a_mask_shows_is_all_a_window_or_unknown() -> None:
    def causal(batch: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return key <= query

    def sliding(batch: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (key <= query) & (key > query - 7)

    def chunked(batch: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (key <= query) & (key // 16 == query // 16)

    assert window_of(causal, 100) == 0
    assert window_of(sliding, 100) == 7
    assert window_of(sliding, 7) == 0
    assert window_of(chunked, 16) == 0
    for context in (33, 64, 100):
        with pytest.raises(UserError, match="hides more"):
            window_of(chunked, context)
