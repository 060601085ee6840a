"""Which token is sampled, and that nobody else in the batch matters."""

import numpy as np
import pytest
import torch

from noria.services.executor.batch import Sampler
from noria.services.executor.sampling import sample


def sampler(
    rows: int,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: int = 1,
    masked: tuple[tuple[int, int], ...] = (),
    first_position: int = 0,
) -> Sampler:
    pairs = np.array(masked, np.int64).reshape(-1, 2)
    return Sampler(
        rows=np.arange(rows),
        slots=np.arange(rows),
        positions=np.arange(first_position, first_position + rows),
        temperature=np.full(rows, temperature),
        top_k=np.full(rows, top_k),
        top_p=np.full(rows, top_p),
        min_p=np.full(rows, min_p),
        seeds=np.full(rows, seed, np.uint64),
        masked_rows=pairs[:, 0],
        masked_ids=pairs[:, 1],
    )


def joined(parts: list[Sampler]) -> Sampler:
    def column(name: str) -> "np.ndarray":  # type: ignore[type-arg]
        return np.concatenate([getattr(part, name) for part in parts])

    names = ("positions", "temperature", "top_k", "top_p", "min_p", "seeds", "masked_rows", "masked_ids")
    count = sum(len(part.rows) for part in parts)
    return Sampler(rows=np.arange(count), slots=np.arange(count), **{name: column(name) for name in names})


def spread(logits: list[float], draws: int, **options: float) -> list[float]:
    rows = torch.tensor([logits]).repeat(draws, 1)
    ids = sample(rows, sampler(draws, **options))  # type: ignore[arg-type]
    return (torch.bincount(ids, minlength=len(logits)) / draws).tolist()


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
    weights = [np.exp(LOGITS[i] / temperature) if i in kept else 0.0 for i in range(len(LOGITS))]
    shares = [weight / sum(weights) for weight in weights]
    assert [i for i, share in enumerate(found) if share > 0] == kept
    chi_square = sum((found[i] - shares[i]) ** 2 / shares[i] for i in kept) * draws
    assert chi_square < 24  # at most 4 degrees of freedom: exceeded once in 10,000


def test_tokens_equal_to_the_last_one_kept_are_kept_too() -> None:
    assert [share > 0 for share in spread([1.0, 1.0, 1.0, 0.0], 500, top_k=2)] == [True, True, True, False]


def test_temperature_zero_takes_the_first_likeliest_token() -> None:
    assert sample(torch.tensor([[0.0, 3.0, 3.0]]), sampler(1, temperature=0.0)).tolist() == [1]


def test_a_tiny_temperature_is_raised_and_takes_the_likeliest() -> None:
    assert sample(torch.tensor([[0.0, 300.0, 3.0]]), sampler(1, temperature=1e-9)).tolist() == [1]


def test_end_ids_are_masked_while_too_few_tokens_are_out() -> None:
    logits = torch.tensor([[9.0, 1.0, 2.0], [9.0, 1.0, 2.0]])
    assert sample(logits, sampler(2, temperature=0.0, masked=((0, 0), (0, 2)))).tolist() == [1, 0]


def test_a_flat_row_beyond_the_first_thousand_is_filtered_exactly() -> None:
    flat = torch.arange(4000, dtype=torch.float32)[None] * -1e-5
    ids = sample(flat.repeat(60, 1), sampler(60, top_p=0.5))
    probability = torch.softmax(flat[0].double(), 0).cumsum(0)
    last = int(torch.searchsorted(probability, torch.tensor(0.5, dtype=torch.float64)))
    assert last * 0.85 < int(ids.max()) <= last + 1
    assert int(ids.min()) < last * 0.15


def test_a_row_is_sampled_the_same_whoever_is_in_the_batch() -> None:
    torch.manual_seed(0)
    options = [
        {"temperature": 0.8, "top_p": 0.9},
        {"temperature": 0.0},
        {"temperature": 1.2},
        {"temperature": 0.7, "top_k": 40, "min_p": 0.02},
        {"temperature": 1.0, "top_k": 1500, "top_p": 0.99},
    ]
    parts = [sampler(1, seed=i * 77, first_position=i, **options[i % 5]) for i in range(60)]  # type: ignore[arg-type]
    logits = torch.randn(60, 5003) * 3
    together = sample(logits.clone(), joined(parts)).tolist()
    alone = [sample(logits[i : i + 1].clone(), part).tolist()[0] for i, part in enumerate(parts)]
    assert together == alone
