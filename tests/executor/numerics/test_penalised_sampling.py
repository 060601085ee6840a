"""Penalties and log-probabilities through scheduler and executor: the same however a request is scheduled, and right.

What each token should have been is computed anew from the logits that it was sampled from and from all ids before it.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch
from executor.numerics.comparison import decoder_of
from executor.numerics.driving import Answer, Asked, Driver, Way
from fakes.sampling import sampler
from fakes.tiny_model import build_tiny_model

from noria.proto.sampling import Sampling
from noria.services.executor.cpu.native.library import levels
from noria.services.executor.cpu.reference_sampling import sample

OUTPUT = 24
KINDS = (
    Sampling(temperature=0.0, repetition_penalty=1.3, logprobs=2),
    Sampling(temperature=0.0, frequency_penalty=1.5, presence_penalty=0.5),
    Sampling(temperature=0.8, top_p=0.9, frequency_penalty=0.7, repetition_penalty=1.2, logprobs=0),
    Sampling(temperature=1.1, presence_penalty=-1.0, logit_bias=((65, 4.0), (66, -100.0)), min_tokens=10),
    Sampling(temperature=1.0, logprobs=20),
)
WAYS = [
    pytest.param(Way(every=-1, steps_in_flight=1), id="one by one, one step in flight"),
    pytest.param(Way(), id="together, two steps in flight"),
    pytest.param(Way(max_batch_tokens=5, every=3), id="staggered, five tokens a step"),
    pytest.param(Way(num_blocks=16), id="with requests that are reset"),
    pytest.param(Way(num_blocks=16, host_slots=40), id="with requests that are swapped out"),
]
KERNELS = ["", *levels()[-1:]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """A tiny model's steps are shorter than threads take to meet."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def requests() -> list[Asked]:
    return [
        Asked(
            tuple((7 * number + 3 * place) % 250 for place in range(5 + 4 * number)),
            msgspec.structs.replace(kind, seed=number, max_tokens=OUTPUT),
            (1,),
        )
        for number, kind in enumerate(KINDS * 2)
    ]


def check(asked: Asked, answer: Answer, vocabulary: int) -> None:
    for position, (token, logits) in enumerate(zip(answer.ids, answer.logits.values(), strict=True)):
        early = [(0, end) for end in asked.end_ids if position < asked.sampling.min_tokens]
        rows = sampler(
            [asked.sampling],
            vocabulary,
            first_position=len(asked.prompt) + position,
            prompts=[asked.prompt],
            outputs=[answer.ids[:position]],
            banned=early,
        )
        expected = sample(logits[None].clone(), rows)
        assert token == expected.ids[0], f"output {position}"
        if asked.sampling.logprobs is not None:
            wanted = expected.likelihood(0, asked.sampling.logprobs)
            assert answer.likelihoods[position].logprob == pytest.approx(wanted.logprob, abs=2e-6)
            assert [each for each, _ in answer.likelihoods[position].top] == [each for each, _ in wanted.top]


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("way", WAYS)
def test_each_token_is_what_its_logits_and_all_tokens_before_it_give(folder: Path, way: Way, kernels: str) -> None:
    decoder = decoder_of(folder, torch.float32, kernels, threads=1)
    driver = Driver(decoder, way, max_model_tokens=96)
    asked = requests()
    answers = driver.run(asked)
    for request, answer in zip(asked, answers, strict=True):
        answer.logits = {position: answer.logits[position] for position in range(len(answer.ids))}
        check(request, answer, decoder.architecture.vocabulary)
        assert len(answer.likelihoods) == (0 if request.sampling.logprobs is None else len(answer.ids))
    counters = driver.core.state.counters
    assert (counters.resets > 0, counters.swaps_in > 0) == (
        way.num_blocks < 1024 and not way.host_slots,
        way.host_slots > 0,
    )
