"""Which token is sampled, and that nobody else in the batch matters."""

from typing import Any

import numpy as np
import pytest
import torch
from fakes.sampling import sampler

from noria.proto.sampling import Sampling
from noria.services.executor.cpu.reference_sampling import sample, weights

Rows = list[list[float]]


def ids(logits: Rows | torch.Tensor, sampling: list[Sampling], **more: Any) -> list[int]:
    rows = torch.tensor(logits) if isinstance(logits, list) else logits.clone()
    found: list[int] = sample(rows, sampler(sampling, rows.shape[1], **more)).ids.tolist()
    return found


def spread(logits: list[float], draws: int, **options: Any) -> list[float]:
    found = ids(torch.tensor([logits]).repeat(draws, 1), [Sampling(seed=1, **options)] * draws)
    return [found.count(token) / draws for token in range(len(logits))]


LOGITS = [0.0, 1.0, 2.0, -1.0, 0.5]


@pytest.mark.parametrize(
    ("options", "kept", "temperature"),
    [
        ({}, [0, 1, 2, 3, 4], 1.0),
        ({"temperature": 0.5}, [0, 1, 2, 3, 4], 0.5),
        ({"top_k": 2}, [1, 2], 1.0),
        ({"top_p": 0.6}, [1, 2], 1.0),  # shares .54 .20 .12 …: the second completes 0.6
        ({"top_p": 0.5}, [2], 1.0),
        ({"min_p": 0.3}, [1, 2], 1.0),  # exp(-1) = 0.37 of the likeliest
        ({"top_k": 3, "top_p": 0.7}, [1, 2], 1.0),  # of the three's mass, two are 0.84 and one is 0.63
        ({"temperature": 10.0, "top_p": 0.6}, [1, 2, 4], 10.0),
    ],
)
def test_draws_follow_the_filtered_distribution(options: dict[str, float], kept: list[int], temperature: float) -> None:
    draws = 8000
    found = spread(LOGITS, draws, **options)
    shares = [np.exp(LOGITS[i] / temperature) if i in kept else 0.0 for i in range(len(LOGITS))]
    shares = [share / sum(shares) for share in shares]
    assert [i for i, share in enumerate(found) if share > 0] == kept
    chi_square = sum((found[i] - shares[i]) ** 2 / shares[i] for i in kept) * draws
    assert chi_square < 24  # at most 4 degrees of freedom: exceeded once in 10,000


def test_a_weight_is_a_power_of_two_to_seven_digits_and_nothing_from_the_smallest_float_down() -> None:
    scores = np.linspace(-126, 0, 200_001, dtype=np.float32)[1:]
    assert np.abs(weights(scores) / np.exp2(scores.astype(np.float64)) - 1).max() < 2.5e-7
    assert weights(np.array([0.0, -1.0, -126.0, -1e30, -np.inf, np.nan], np.float32)).tolist() == [1, 0.5, 0, 0, 0, 0]


def test_tokens_equal_to_the_last_one_kept_are_kept_too() -> None:
    assert [share > 0 for share in spread([1.0, 1.0, 1.0, 0.0], 500, top_k=2)] == [True, True, True, False]
    assert [share > 0 for share in spread([1.0, 1.0, 1.0, 0.0], 500, top_p=0.3)] == [True, True, True, False]


def test_temperature_zero_takes_the_first_likeliest_token() -> None:
    assert ids([[0.0, 3.0, 3.0]], [Sampling(temperature=0.0)]) == [1]


def test_a_tiny_temperature_is_raised_and_takes_the_likeliest() -> None:
    assert ids([[0.0, 300.0, 3.0]], [Sampling(temperature=1e-9)]) == [1]


def test_banned_ids_are_not_sampled() -> None:
    rows = [[9.0, 1.0, 2.0], [9.0, 1.0, 2.0]]
    assert ids(rows, [Sampling(temperature=0.0)] * 2, banned=((0, 0), (0, 2))) == [1, 0]


def test_penalties_are_taken_in_the_order_of_bias_repetition_frequency_presence() -> None:
    rows = torch.tensor([[2.0, -2.0, 6.0, 4.0, 0.0]])
    sampling = Sampling(
        temperature=0.0, repetition_penalty=2.0, frequency_penalty=0.5, presence_penalty=0.25, logit_bias=((0, 1.0),)
    )
    sample(rows, sampler([sampling], 5, prompts=[(0, 1)], outputs=[(2, 2, 1)]))
    # Ids 0 and 1 of the prompt, 1 and 2 of the output: (2 + 1) / 2; -2 * 2 - 0.5 - 0.25; 6 / 2 - 2 * 0.5 - 0.25.
    assert rows.tolist() == [[1.5, -4.75, 1.75, 4.0, 0.0]]


def test_what_is_no_number_is_never_sampled_and_an_infinite_logit_always() -> None:
    nothing, infinite = float("nan"), float("inf")
    assert ids([[nothing, 1.0, nothing]] * 2, [Sampling(temperature=0.0), Sampling(seed=3)]) == [1, 1]
    assert ids([[nothing, 1.0, infinite]] * 2, [Sampling(temperature=0.0), Sampling(seed=3)]) == [2, 2]
    assert ids([[nothing, -infinite]] * 2, [Sampling(temperature=0.0), Sampling(seed=3, top_p=0.5)]) == [0, 0]


def test_log_probabilities_are_the_models_own_whatever_is_sampled() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0, 3.0]])
    shares = torch.log_softmax(logits.double(), -1)[0].tolist()
    sampling = Sampling(temperature=0.0, logprobs=3, logit_bias=((0, 50.0),), repetition_penalty=2.0)
    found = sample(logits, sampler([sampling], 4, outputs=[(1,)]))
    likelihood = found.likelihood(0, 3)
    assert found.ids.tolist() == [0] and likelihood.logprob == pytest.approx(shares[0], abs=1e-6)
    assert [token for token, _ in likelihood.top] == [1, 3, 2]  # of equals the lower id first
    assert [share for _, share in likelihood.top] == pytest.approx([shares[1], shares[3], shares[2]], abs=1e-6)


def test_each_row_is_told_as_many_log_probabilities_as_it_asked_for() -> None:
    found = sample(torch.zeros(3, 4), sampler([Sampling(logprobs=0), Sampling(), Sampling(logprobs=9)], 4))
    assert [len(found.likelihood(row, wanted).top) for row, wanted in ((0, 0), (2, 9))] == [0, 4]


def test_a_flat_row_is_filtered_exactly() -> None:
    flat = torch.arange(4000, dtype=torch.float32)[None] * -1e-5
    found = ids(flat.repeat(60, 1), [Sampling(top_p=0.5, seed=1)] * 60)
    probability = torch.softmax(flat[0].double(), 0).cumsum(0)
    last = int(torch.searchsorted(probability, torch.tensor(0.5, dtype=torch.float64)))
    assert last * 0.85 < max(found) <= last + 1
    assert min(found) < last * 0.15


def test_a_row_is_sampled_the_same_whoever_is_in_the_batch() -> None:
    torch.manual_seed(0)
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.8, "top_p": 0.9},
        {"temperature": 0.0, "presence_penalty": 1.0},
        {"temperature": 1.2, "logprobs": 3},
        {"temperature": 0.7, "top_k": 40, "min_p": 0.02, "logit_bias": ((5, 3.0),)},
        {"temperature": 1.0, "top_k": 1500, "top_p": 0.99},
    ]
    sampling = [Sampling(seed=row * 77, **kinds[row % 5]) for row in range(60)]
    outputs = [tuple(range(row)) for row in range(60)]
    logits = torch.randn(60, 5003) * 3
    together = ids(logits, sampling, outputs=outputs)
    alone = [
        ids(logits[row : row + 1], sampling[row : row + 1], outputs=outputs[row : row + 1], first_position=row)[0]
        for row in range(60)
    ]
    assert together == alone
