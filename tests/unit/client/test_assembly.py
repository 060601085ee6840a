"""Putting one choice together from deltas that repeat, overlap or are missing."""

import random

import pytest

from noria.client.assembly import Assembly
from noria.client.results import Choice, Completion, Finish
from noria.proto.base import Logprobs
from noria.proto.frontdoor import Delta

PARTS = ["He", "llo", "", " 🌍", "👩‍👩‍👧", "", "!", " bye"]


def delta(first: int, last: int, attempt: int = 0) -> Delta:
    return Delta(
        "r", 0, attempt, first, tuple(range(first, last)), len("".join(PARTS[:first])), "".join(PARTS[first:last])
    )


@pytest.mark.parametrize("seed", range(50))
def test_any_overlapping_repeating_and_gappy_order_gives_the_text_once(seed: int) -> None:
    chance = random.Random(seed)
    assembly = Assembly(0)
    text, ids = "", []
    while len(assembly.ids) < len(PARTS):
        first = chance.randrange(len(PARTS))
        had = len(assembly.ids)
        taken = assembly.take(delta(first, chance.randrange(first, len(PARTS)) + 1))
        assert taken == (first <= had)
        if chance.random() < 0.5 and (news := assembly.read()):
            assert (news.start, news.characters) == (len(ids), len(text))
            text += news.text
            ids += news.token_ids
    assert not assembly.end(Finish("stop", output_tokens=len(PARTS) + 1))
    assert assembly.end(Finish("stop", output_tokens=len(PARTS)))
    news = assembly.read()
    assert news is not None
    assert news.finish is not None
    assert text + news.text == "".join(PARTS) == assembly.whole().text
    assert (*ids, *news.token_ids) == tuple(range(len(PARTS))) == assembly.whole().token_ids
    assert assembly.read() is None


def test_a_higher_attempt_cuts_back_what_was_and_was_not_read() -> None:
    assembly = Assembly(0)
    assembly.take(delta(0, 2))
    assembly.read()
    assembly.take(delta(2, 5))
    assert not assembly.take(delta(6, 7, attempt=1))
    assert assembly.take(Delta("r", 0, 1, 1, (77,), 2, "y"))
    news = assembly.read()
    assert news is not None
    assert (news.start, news.characters, news.text, news.token_ids, news.attempt) == (1, 2, "y", (77,), 1)
    assert assembly.take(delta(2, 3))  # of the attempt before: dropped
    assembly.end(Finish("stop", output_tokens=2))
    assert assembly.whole().text == "Hey"
    assert assembly.whole().token_ids == (0, 77)


def test_text_with_a_hole_before_it_is_not_taken_though_its_ids_fit() -> None:
    assembly = Assembly(0)
    assert assembly.take(Delta("r", 0, 0, 0, (1,), 0, "a"))
    assert not assembly.take(Delta("r", 0, 0, 1, (2,), 3, "d"))
    assert (assembly.ids, assembly.characters) == ([1], 1)


def test_a_cold_prompt_of_several_choices_counts_nothing_as_cached() -> None:
    finishes = [Finish("stop", prompt_tokens=50, output_tokens=1, cached_tokens=cached) for cached in (0, 48)]
    cold = Completion("r", None, tuple(Choice(index, "a", (1,), each) for index, each in enumerate(finishes)))
    assert cold.usage.cached_tokens == 0


def test_log_probabilities_stay_with_their_tokens_through_repeats_and_attempts() -> None:
    def told(*ids: int) -> tuple[Logprobs, ...]:
        return tuple(Logprobs(-token, b"x", 0) for token in ids)

    assembly = Assembly(0)
    assembly.take(Delta("r", 0, 0, 0, (1, 2), 0, "ab", told(1, 2)))
    assembly.take(Delta("r", 0, 0, 1, (2, 3), 1, "bc", told(2, 3)))
    news = assembly.read()
    assert news is not None and news.logprobs == told(1, 2, 3)
    assembly.take(Delta("r", 0, 1, 1, (9,), 1, "y", told(9)))
    news = assembly.read()
    assert news is not None and (news.start, news.logprobs) == (1, told(9))
    assembly.end(Finish("stop", output_tokens=2))
    assert assembly.whole().logprobs == told(1, 9)
