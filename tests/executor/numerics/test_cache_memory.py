"""SmolLM2's tokens do not depend on what the cache went through: hits, evictions, resets and swaps, at any chunk size."""

from pathlib import Path
from types import ModuleType

import msgspec
import pytest
import torch
from executor.numerics.comparison import LENGTHS, NEW_TOKENS
from executor.numerics.driving import Answer, Asked, Driver, Way
from fakes.scripts import script

from noria.proto.sampling import Sampling
from noria.services.executor.cpu.engine import CpuEngine
from noria.services.executor.model.decoder import Decoder

pytestmark = pytest.mark.model

GREEDY = Sampling(temperature=0.0, max_tokens=NEW_TOKENS)
FEW = [i for i, length in enumerate(LENGTHS) if length in (33, 65, 129)]
MANY = [i for i, length in enumerate(LENGTHS) if length >= 33]


def asked(prompts: list[tuple[int, ...]], chosen: list[int]) -> list[Asked]:
    return [Asked(prompts[i], GREEDY) for i in chosen]


def same_bits(one: list[Answer], other: list[Answer]) -> None:
    for a, b in zip(one, other, strict=True):
        assert a.ids == b.ids
        assert all(torch.equal(a.logits[position], b.logits[position]) for position in range(len(a.ids)))


@pytest.fixture(scope="module")
def cold(float32: Decoder, prompts: list[tuple[int, ...]]) -> dict[int, Answer]:
    """Each prompt alone in a fresh cache; only those of FEW are computed in advance."""
    return dict(zip(FEW, Driver(float32, Way(every=-1)).run(asked(prompts, FEW)), strict=True))


def test_a_prompt_found_in_the_cache_gives_the_same_tokens(
    float32: Decoder, prompts: list[tuple[int, ...]], cold: dict[int, Answer]
) -> None:
    driver = Driver(float32, Way(every=-1, max_batch_tokens=100))
    answers = driver.run(asked(prompts, FEW + FEW))
    assert driver.core.state.counters.hit_tokens >= sum(LENGTHS[i] // 16 * 16 - 16 for i in FEW)
    same_bits(answers, [cold[i] for i in FEW + FEW])


def test_twins_at_once_give_the_same_tokens_and_share_what_they_can(
    float32: Decoder, prompts: list[tuple[int, ...]], cold: dict[int, Answer]
) -> None:
    driver = Driver(float32, Way(max_batch_tokens=48))
    answers = driver.run(asked(prompts, FEW[-1:] * 3))
    assert driver.core.state.counters.hit_tokens >= 2 * 96
    same_bits(answers, [cold[FEW[-1]]] * 3)


def test_an_evicted_prompt_is_computed_again_to_the_same_tokens(
    float32: Decoder, prompts: list[tuple[int, ...]], cold: dict[int, Answer]
) -> None:
    # Nine pages are enough for one of them only.
    driver = Driver(float32, Way(every=-1, num_blocks=2 + 10))
    answers = driver.run(asked(prompts, FEW + FEW))
    assert driver.core.state.counters.evictions > 0
    same_bits(answers, [cold[i] for i in FEW + FEW])


@pytest.mark.parametrize("host_slots", [0, 20], ids=["reset", "swapped"])
def test_preempted_requests_give_the_same_tokens(
    float32: Decoder, prompts: list[tuple[int, ...]], cold: dict[int, Answer], host_slots: int
) -> None:
    # Longer answers than `cold` has, so that they outgrow the pool: what both have must be the same.
    more = msgspec.structs.replace(GREEDY, max_tokens=3 * NEW_TOKENS)
    way = Way(num_blocks=2 + 17, host_slots=host_slots, max_batch_tokens=64, safety_margin=0.0)
    driver = Driver(float32, way)
    answers = driver.run([Asked(prompts[i], more) for i in FEW])
    counters = driver.core.state.counters
    assert (counters.swaps_in if host_slots else counters.resets) > 0, "nobody was preempted: nothing was tested"
    for answer, i in zip(answers, FEW, strict=True):
        assert answer.ids[:NEW_TOKENS] == cold[i].ids
        assert all(torch.equal(answer.logits[p], cold[i].logits[p]) for p in range(NEW_TOKENS))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("max_batch_tokens", [1, 17, 64, 512])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_every_history_gives_the_same_tokens_at_any_chunk_size(
    float32: Decoder, bfloat16: Decoder, prompts: list[tuple[int, ...]], max_batch_tokens: int, dtype: str
) -> None:
    decoder = bfloat16 if dtype == "bfloat16" else float32
    chosen = [i for i in MANY if LENGTHS[i] <= (65 if max_batch_tokens == 1 else 900)]
    cache = dtype if dtype == "int8" else ""
    alone = Driver(decoder, Way(every=-1, cache_dtype=cache)).run(asked(prompts, chosen))
    largest = max(-(-(LENGTHS[i] + NEW_TOKENS) // 16) for i in chosen)
    for host_slots in (0, 3 * largest):
        way = Way(
            max_batch_tokens=max_batch_tokens,
            num_blocks=2 + largest + largest // 2,
            host_slots=host_slots,
            every=1,
            cache_dtype=cache,
        )
        driver = Driver(decoder, way)
        same_bits(driver.run(asked(prompts, chosen + chosen)), [*alone, *alone])


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    return script("benchmarks/cache_dtypes.py")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_an_int8_cache_finds_the_same_likeliest_token_nearly_always(
    float32: Decoder, real_folder: Path, benchmark: ModuleType
) -> None:
    exact, coarse = (CpuEngine(float32, benchmark.shape_of(float32, 1), dtype) for dtype in (None, torch.int8))
    apart = benchmark.compare(exact, coarse, benchmark.sequences_of(benchmark.prose(real_folder, [])))
    assert apart.tokens >= 5000
    assert 0.98 <= apart.agreement < 1, "of 1, nothing was quantised"
