"""Tiny models of each kind, computed and sampled by a device's operations in Triton's interpreter, equal the reference."""

from pathlib import Path
from typing import Any

import pytest
import torch
from executor.numerics.driving import Answer, Asked, Driver, Way
from executor.numerics.test_families import CAPS, EXPERTS, TYPES, build

from noria.proto.sampling import Sampling
from noria.services.executor.cuda.layers.linear import DeviceLinearFactory
from noria.services.executor.kv_cache.layer_groups import layer_groups
from noria.services.executor.model.architecture import architecture
from noria.services.executor.model.checkpoint import Checkpoint
from noria.services.executor.model.decoder import Decoder

pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 120}
MODELS = [
    pytest.param("Llama", {"attention_bias": True, "mlp_bias": True, **SMALL}, id="llama, biases"),
    pytest.param("Gemma2", {"sliding_window": 12, "query_pre_attn_scalar": 24, **CAPS, **SMALL}, id="gemma 2"),
    pytest.param("Gemma3Text", {"sliding_window": 12, **SMALL, "layer_types": TYPES[:2]}, id="gemma 3"),
    pytest.param("Qwen3Moe", {**EXPERTS, "norm_topk_prob": True, "mlp_only_layers": [1], **SMALL}, id="qwen3 moe"),
]
ASKED = [
    Asked(tuple(range(2, 17)), Sampling(temperature=0.0, max_tokens=4)),
    Asked((7, 9, 11), Sampling(seed=5, max_tokens=4, top_k=40, logprobs=3)),
    Asked(tuple(range(30, 35)), Sampling(seed=6, max_tokens=4, repetition_penalty=1.3, frequency_penalty=0.5)),
]


def _answers(folder: Path, *, device: bool, padding: int = 1) -> tuple[list[Answer], int]:
    """What comes back, and how many experts were read."""
    facts = architecture(folder)
    linear_factory = DeviceLinearFactory(torch.float32, torch.device("cpu")) if device else None
    decoder = Decoder(facts, Checkpoint(folder), torch.float32, 512, 32, linear_factory)
    # Two steps in flight: a device carries tokens that the host has not seen.
    driver = Driver(decoder, Way(max_batch_tokens=11, num_blocks=60, every=1), 256)
    engine = driver.engine
    if device:
        from executor.numerics.on_device import OnDevice

        places = layer_groups(facts.windows, engine.shape.max_model_tokens)
        engine._operations = OnDevice(facts, engine.shape, engine.cache, places, torch.float32, padding)
    return driver.run(ASKED), engine.experts_read


@pytest.mark.parametrize(("name", "options"), MODELS)
def test_a_tiny_model_gives_the_same_tokens_on_a_device(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    build(name, options, tmp_path)
    mixture = name.endswith("Moe")
    answers, read = _answers(tmp_path, device=False)
    # Padding reads experts too.
    got, theirs_read = _answers(tmp_path, device=True, padding=0 if mixture else 1)
    assert theirs_read == read and (read > 0) == mixture
    for expected, found in zip(answers, got, strict=True):
        assert found.ids == expected.ids
        for position in range(len(expected.ids)):
            assert (found.logits[position] - expected.logits[position]).abs().max() < 1e-4
        for ours, theirs in zip(found.likelihoods, expected.likelihoods, strict=True):
            assert [token for token, _ in ours.top] == [token for token, _ in theirs.top]
