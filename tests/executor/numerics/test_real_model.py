"""SmolLM2's greedy tokens and logits against transformers, for every way of scheduling it."""

from pathlib import Path

import pytest
import torch
from executor.numerics.comparison import LENGTHS, LEVELS, NEW_TOKENS, Reference, decoder_of
from executor.numerics.driving import Answer, Asked, Driver, Way

from noria.proto.sampling import Sampling
from noria.services.executor.model.decoder import Decoder

pytestmark = pytest.mark.model

GREEDY = Sampling(temperature=0.0, max_tokens=NEW_TOKENS)
SHORT = [i for i, length in enumerate(LENGTHS) if length <= 17]
MIDDLE = [i for i, length in enumerate(LENGTHS) if length <= 65]
SOME = [i for i, length in enumerate(LENGTHS) if length in (1, 17, 256, 900)]
ALL = list(range(len(LENGTHS)))
SIXTEEN = ALL[3:19]


def run(decoder: Decoder, prompts: list[tuple[int, ...]], chosen: list[int], way: Way) -> tuple[list[Answer], Driver]:
    driver = Driver(decoder, way)
    return driver.run([Asked(prompts[i], GREEDY) for i in chosen]), driver


def check(answers: list[Answer], expected: Reference, chosen: list[int]) -> None:
    for answer, i in zip(answers, chosen, strict=True):
        want = expected[i]
        certain = want.certain()
        assert answer.ids[:certain] == want.ids[:certain], f"prompt of {LENGTHS[i]}"
        for position in range(min(certain + 1, NEW_TOKENS)):
            error = (answer.logits[position] - want.logits[position]).abs().max().item()
            assert error < 1e-4, f"prompt of {LENGTHS[i]}, output {position}: logits differ by {error}"


def same_bits(one: list[Answer], other: list[Answer]) -> None:
    for a, b in zip(one, other, strict=True):
        assert a.ids == b.ids
        assert all(torch.equal(a.logits[position], b.logits[position]) for position in range(len(a.ids)))


WAYS = [
    pytest.param(SOME, Way(every=-1), id="alone"),
    pytest.param(SIXTEEN, Way(every=1), id="sixteen together, arriving one a step"),
    pytest.param(SHORT, Way(max_batch_tokens=1), id="one token a step"),
    pytest.param(MIDDLE, Way(max_batch_tokens=7, steps_in_flight=1), id="seven tokens a step, one step in flight"),
    pytest.param(MIDDLE, Way(max_batch_tokens=64, every=2), id="64 tokens a step"),
    pytest.param(ALL, Way(every=-1), id="all alone", marks=pytest.mark.slow),
    pytest.param(ALL, Way(every=-1, steps_in_flight=1), id="all alone, one in flight", marks=pytest.mark.slow),
    pytest.param(ALL, Way(max_batch_tokens=7), id="all, seven tokens", marks=pytest.mark.slow),
    pytest.param(ALL, Way(max_batch_tokens=64, every=3), id="all, 64 tokens, staggered", marks=pytest.mark.slow),
    pytest.param(ALL, Way(every=2, steps_in_flight=1), id="all staggered, one in flight", marks=pytest.mark.slow),
    pytest.param(ALL, Way(page_size=32), id="all, pages of 32", marks=pytest.mark.slow),
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("chosen", "way"), WAYS)
def test_greedy_tokens_and_logits_equal_transformers(
    float32: Decoder, prompts: list[tuple[int, ...]], expected: Reference, chosen: list[int], way: Way
) -> None:
    answers, _ = run(float32, prompts, chosen, way)
    check(answers, expected, chosen)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("steps_in_flight", [1, 2])
def test_tokens_stay_the_same_when_blocks_run_out_and_requests_are_reset(
    float32: Decoder, prompts: list[tuple[int, ...]], expected: Reference, steps_in_flight: int
) -> None:
    # Each grows over the end of a page while it decodes, and the pool has no page for all of them.
    chosen = [i for i in ALL if LENGTHS[i] in (13, 16, 31, 33, 63)] * 2
    answers, driver = run(
        float32, prompts, chosen, Way(num_blocks=16, steps_in_flight=steps_in_flight, max_batch_tokens=64)
    )
    assert driver.core.state.counters.resets > 0, "the cache was large enough: nothing was tested"
    check(answers, expected, chosen)


@pytest.mark.timeout(600)
def test_a_float32_step_has_the_same_bits_alone_and_together(float32: Decoder, prompts: list[tuple[int, ...]]) -> None:
    assert float32.batch_invariant
    chosen = [i for i in ALL if LENGTHS[i] in (2, 17, 65, 257)]
    alone, _ = run(float32, prompts, chosen, Way(every=-1))
    together, _ = run(float32, prompts, chosen, Way(max_batch_tokens=40, every=1))
    same_bits(alone, together)


BFLOAT16_WAYS = [
    pytest.param([i for i in ALL if LENGTHS[i] in (1, 16, 33, 127, 257, 300)], Way(every=1), id="some"),
    pytest.param(ALL, Way(every=1), id="all", marks=pytest.mark.slow),
    pytest.param(ALL, Way(max_batch_tokens=61, steps_in_flight=1), id="all, 61 tokens", marks=pytest.mark.slow),
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("chosen", "way"), BFLOAT16_WAYS)
def test_a_bfloat16_step_has_the_same_bits_alone_and_together(
    bfloat16: Decoder, prompts: list[tuple[int, ...]], chosen: list[int], way: Way
) -> None:
    if not bfloat16.batch_invariant:
        pytest.skip("bfloat16 products of this processor depend on the rows beside them; the start-up table says so")
    alone, _ = run(bfloat16, prompts, chosen, Way(every=-1))
    together, _ = run(bfloat16, prompts, chosen, way)
    same_bits(alone, together)


NATIVE = [
    pytest.param(torch.float32, "none", id="float32"),
    pytest.param(torch.bfloat16, "none", id="bfloat16"),
    pytest.param(torch.bfloat16, "int8", id="int8"),
]


@pytest.mark.skipif(not LEVELS, reason="the kernels are not built")
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("dtype", "quantization"), NATIVE)
def test_a_native_step_has_the_same_bits_in_every_batch_on_any_pages_and_threads(
    real_folder: Path, prompts: list[tuple[int, ...]], dtype: torch.dtype, quantization: str
) -> None:
    one, two = (decoder_of(real_folder, dtype, LEVELS[-1], quantization, threads) for threads in (1, 2))
    chosen = [i for i in ALL if LENGTHS[i] in (2, 17, 65, 257)]
    alone, _ = run(one, prompts, chosen, Way(every=-1))
    for decoder, way in ((two, Way(max_batch_tokens=40, every=1)), (one, Way(page_size=24, every=-1))):
        # All of them twice: what came first is found in the cache by the others.
        again, _ = run(decoder, prompts, chosen + chosen, way)
        same_bits([*alone, *alone], again)


@pytest.mark.skipif(not LEVELS, reason="the kernels are not built")
@pytest.mark.timeout(600)
def test_native_greedy_tokens_and_logits_equal_transformers(
    real_folder: Path, prompts: list[tuple[int, ...]], expected: Reference
) -> None:
    decoder = decoder_of(real_folder, torch.float32, LEVELS[-1])
    answers, _ = run(decoder, prompts, SIXTEEN, Way(max_batch_tokens=200, every=1))
    check(answers, expected, SIXTEEN)


def test_bfloat16_is_about_as_near_to_float32_as_transformers_own(
    real_folder: Path, bfloat16: Decoder, prompts: list[tuple[int, ...]], expected: Reference
) -> None:
    # Eleven prompts: one alone may be four times as far off as transformers', another a quarter.
    chosen = [i for i in ALL if 13 <= LENGTHS[i] <= 129]
    own = Reference(real_folder, prompts, torch.bfloat16, new_tokens=1)
    answers, _ = run(bfloat16, prompts, chosen, Way(max_batch_tokens=100))
    ours, theirs = 0.0, 0.0
    for answer, i in zip(answers, chosen, strict=True):
        ours += (answer.logits[0] - expected[i].logits[0]).abs().mean().item()
        theirs += (own[i].logits[0] - expected[i].logits[0]).abs().mean().item()
    # How large the error is depends on the processor's products; transformers computes with the same ones.
    assert ours <= 2 * theirs


def test_seeded_sampling_gives_the_same_tokens_whoever_is_in_the_batch(
    float32: Decoder, prompts: list[tuple[int, ...]]
) -> None:
    mine = Asked(prompts[8], Sampling(temperature=0.9, top_p=0.95, top_k=50, seed=1234, max_tokens=NEW_TOKENS))
    mates = [
        Asked(prompts[3], Sampling(temperature=1.3, seed=7, max_tokens=4)),
        Asked(prompts[12], Sampling(temperature=0.0, max_tokens=6)),
        Asked(prompts[9], Sampling(temperature=0.7, min_p=0.1, seed=1234, max_tokens=20), withdraw_at=3),
    ]
    (alone,) = Driver(float32, Way()).run([mine])
    in_company = Driver(float32, Way(max_batch_tokens=50, every=1)).run([mates[0], mine, *mates[1:]])[1]
    again = Driver(float32, Way(max_batch_tokens=20, steps_in_flight=1)).run([*mates, mine])[3]
    assert alone.ids == in_company.ids == again.ids
    other = Driver(float32, Way()).run(
        [Asked(mine.prompt, Sampling(temperature=0.9, seed=4321, max_tokens=NEW_TOKENS))]
    )
    assert other[0].ids != alone.ids
