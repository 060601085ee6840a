"""Gemma 3 270M, whose layers mostly slide, against transformers far beyond its window of 512 tokens."""

from pathlib import Path

import msgspec
import pytest
import torch
from executor.numerics.comparison import TEXT, decoder_of, expect
from executor.numerics.driving import Asked, Driver, Way

from noria.proto.sampling import Sampling
from noria.shared.config.sources import load
from noria.shared.errors import UserError
from noria.shared.model.model_folder import resolve_model_folder

pytestmark = [pytest.mark.model, pytest.mark.slow]

NEW_TOKENS = 12


@pytest.fixture(scope="module")
def folder() -> Path:
    settings = msgspec.structs.replace(load(None).model, name="gemma3-270m")
    try:
        return resolve_model_folder(settings)
    except UserError as error:
        pytest.skip(str(error))


@pytest.mark.timeout(1800)
def test_greedy_tokens_equal_transformers_beyond_the_window_in_every_batch(folder: Path) -> None:
    from tokenizers import Tokenizer
    from transformers import AutoModelForCausalLM

    ids = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(TEXT * 20).ids
    prompts = [tuple(ids[:length]) for length in (5, 700, 1600, 508, 510, 511)]
    model = AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32)
    expected = expect(model, prompts, NEW_TOKENS)
    del model
    decoder = decoder_of(folder, torch.float32)
    assert decoder.batch_invariant
    asked = [Asked(prompt, Sampling(temperature=0.0, max_tokens=NEW_TOKENS)) for prompt in prompts]
    everyone = range(len(prompts))
    ways = (
        (everyone, Way(every=-1)),
        (everyone, Way(max_batch_tokens=200, every=2)),
        # Each of the three needs one page more for its window before it ends, and the pool has only one.
        ((3, 4, 5), Way(num_blocks=119, host_slots=100, safety_margin=0.0)),
    )
    for chosen, way in ways:
        driver = Driver(decoder, way)
        for answer, index in zip(driver.run([asked[index] for index in chosen]), chosen, strict=True):
            want, certain = expected[index], expected[index].certain()
            assert certain > 4
            assert answer.ids[:certain] == want.ids[:certain]
            for position in range(certain):
                assert (answer.logits[position] - want.logits[position]).abs().max() < 1e-3
        assert driver.core.state.counters.swaps_in > 0 or not way.host_slots
