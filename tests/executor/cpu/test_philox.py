"""Philox against its authors' known answers, and the draws made of it."""

import numpy as np
import pytest

from noria.services.executor.cpu.philox import philox4x32, uniform

# From kat_vectors of Random123 1.14 (philox 4x32, 10 rounds).
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> list["np.ndarray[tuple[int], np.dtype[np.uint64]]"]:
    return [np.array([int(word, 16)], np.uint64) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_philox_gives_its_authors_known_answers(counter: str, key: str, answer: str) -> None:
    found = philox4x32(tuple(words(counter)), tuple(words(key)))
    assert [int(word[0]) for word in found] == [int(word, 16) for word in answer.split()]


def test_a_draw_depends_on_all_bits_of_seed_and_position_and_on_nothing_else() -> None:
    seeds = np.array([1, 1 + (1 << 40), 1, 2**64 - 1, 1], np.uint64)
    draws = uniform(seeds, np.array([5, 5, 5 + (1 << 33), 5, 5]))
    assert draws[0] == draws[4] == uniform(seeds[:1], np.array([5]))[0]
    assert len(set(draws[:4].tolist())) == 4
    assert (draws >= 0).all() and (draws < 1).all()


def test_draws_of_one_seed_are_spread_evenly() -> None:
    draws = uniform(np.full(100_000, 42, np.uint64), np.arange(100_000))
    counts, _ = np.histogram(draws, 100, (0, 1))
    chi_square = ((counts - 1000) ** 2 / 1000).sum()
    assert chi_square < 160  # 99 degrees of freedom: exceeded once in 10,000 seeds
