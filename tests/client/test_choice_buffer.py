"""Putting one choice together from deltas that repeat, overlap or are missing."""

import random

import pytest

from noria.client.choice_buffer import ChoiceBuffer
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
    buffer = ChoiceBuffer(0)
    text, ids = "", []
    while len(buffer.ids) < len(PARTS):
        first = chance.randrange(len(PARTS))
        had = len(buffer.ids)
        taken = buffer.add(delta(first, chance.randrange(first, len(PARTS)) + 1))
        assert taken == (first <= had)
        if chance.random() < 0.5 and (news := buffer.read()):
            assert (news.start, news.characters) == (len(ids), len(text))
            text += news.text
            ids += news.token_ids
    assert not buffer.end(Finish("stop", output_tokens=len(PARTS) + 1))
    assert buffer.end(Finish("stop", output_tokens=len(PARTS)))
    news = buffer.read()
    assert news is not None
    assert news.finish is not None
    assert text + news.text == "".join(PARTS) == buffer.choice().text
    assert (*ids, *news.token_ids) == tuple(range(len(PARTS))) == buffer.choice().token_ids
    assert buffer.read() is None


def test_a_higher_attempt_cuts_back_what_was_and_was_not_read() -> None:
    buffer = ChoiceBuffer(0)
    buffer.add(delta(0, 2))
    buffer.read()
    buffer.add(delta(2, 5))
    assert not buffer.add(delta(6, 7, attempt=1))
    assert buffer.add(Delta("r", 0, 1, 1, (77,), 2, "y"))
    news = buffer.read()
    assert news is not None
    assert (news.start, news.characters, news.text, news.token_ids, news.attempt) == (1, 2, "y", (77,), 1)
    assert buffer.add(delta(2, 3))  # of the attempt before: dropped
    buffer.end(Finish("stop", output_tokens=2))
    assert buffer.choice().text == "Hey"
    assert buffer.choice().token_ids == (0, 77)


def test_text_with_a_hole_before_it_is_not_taken_though_its_ids_fit() -> None:
    buffer = ChoiceBuffer(0)
    assert buffer.add(Delta("r", 0, 0, 0, (1,), 0, "a"))
    assert not buffer.add(Delta("r", 0, 0, 1, (2,), 3, "d"))
    assert (buffer.ids, buffer.characters) == ([1], 1)


def test_a_cold_prompt_of_several_choices_counts_nothing_as_cached() -> None:
    finishes = [Finish("stop", prompt_tokens=50, output_tokens=1, cached_tokens=cached) for cached in (0, 48)]
    cold = Completion("r", None, tuple(Choice(index, "a", (1,), each) for index, each in enumerate(finishes)))
    assert cold.usage.cached_tokens == 0


def test_log_probabilities_stay_with_their_tokens_through_repeats_and_attempts() -> None:
    def told(*ids: int) -> tuple[Logprobs, ...]:
        return tuple(Logprobs(-token, b"x", 0) for token in ids)

    buffer = ChoiceBuffer(0)
    buffer.add(Delta("r", 0, 0, 0, (1, 2), 0, "ab", told(1, 2)))
    buffer.add(Delta("r", 0, 0, 1, (2, 3), 1, "bc", told(2, 3)))
    news = buffer.read()
    assert news is not None and news.logprobs == told(1, 2, 3)
    buffer.add(Delta("r", 0, 1, 1, (9,), 1, "y", told(9)))
    news = buffer.read()
    assert news is not None and (news.start, news.logprobs) == (1, told(9))
    buffer.end(Finish("stop", output_tokens=2))
    assert buffer.choice().logprobs == told(1, 9)
