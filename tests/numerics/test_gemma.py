"""Gemma 3 270M, whose layers mostly slide, against transformers far beyond its window of 512 tokens."""

from pathlib import Path

import msgspec
import pytest
import torch
from numerics.comparison import TEXT, decoder_of, expect
from numerics.driving import Asked, Driver, Way

from noria.proto.base import Sampling
from noria.shared.config import load
from noria.shared.errors import UserError
from noria.shared.models import resolve

pytestmark = [pytest.mark.model, pytest.mark.slow]

NEW_TOKENS = 12


@pytest.fixture(scope="module")
def folder() -> Path:
    settings = msgspec.structs.replace(load(None).model, name="gemma3-270m")
    try:
        return resolve(settings)
    except UserError as error:
        pytest.skip(str(error))


@pytest.mark.timeout(1800)
def test_greedy_tokens_equal_transformers_beyond_the_window_in_every_batch(folder: Path) -> None:
    from tokenizers import Tokenizer
    from transformers import AutoModelForCausalLM

    ids = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(TEXT * 20).ids
    prompts = [tuple(ids[:length]) for length in (5, 510, 700, 1600)]
    model = AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32)
    expected = expect(model, prompts, NEW_TOKENS)
    del model
    decoder = decoder_of(folder, torch.float32)
    assert decoder.steady
    asked = [Asked(prompt, Sampling(temperature=0.0, max_tokens=NEW_TOKENS)) for prompt in prompts]
    ways = (
        Way(every=-1),
        Way(max_batch_tokens=200, every=2),
        Way(max_batch_tokens=128, num_blocks=70, host_slots=100),
    )
    for way in ways:
        driver = Driver(decoder, way)
        for answer, want in zip(driver.run(asked), expected, strict=True):
            certain = want.certain()
            assert certain > 4
            assert answer.ids[:certain] == want.ids[:certain]
            for position in range(certain):
                assert (answer.logits[position] - want.logits[position]).abs().max() < 1e-3
        assert driver.core.board.counters.swaps_in > 0 or not way.host_slots
