"""Streams of text: ends, stop strings, re-opening, gaps and duplicates."""

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from fakes.vocabularies import TEXTS, byte_fallback, byte_level
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import astuple

from noria.proto.base import Alternative, End, Ended, Logprobs, Stream, TokenLogprob
from noria.proto.output import Gap, Open, Opening, Resend, TextRun, TokenRun, Tokens
from noria.services.detokenizer.core.detokenizer import (
    ENDED_REMEMBERED_MAX,
    AdmissionConnected,
    Detokenizer,
    SchedulerConnected,
    TurnOutput,
)
from noria.services.detokenizer.core.vocabulary import DecodingScheme, Vocabulary
from noria.services.detokenizer.service import vocabulary_of

S = Stream(7, 0)
LETTERS = Vocabulary(DecodingScheme.BYTES, tuple(bytes([byte]) for byte in range(256)), special=frozenset({0}))


class Ledger:
    """Admission's side: applies texts as the ledger does, and fails on anything lost, repeated or out of order."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.text = ""
        self.attempt = 0
        self.end: TextRun | None = None

    def apply(self, news: TurnOutput) -> None:
        for run in news.texts:
            assert self.end is None
            if run.attempt > self.attempt:
                self.attempt = run.attempt
                del self.ids[run.start :]
                self.text = self.text[: run.characters]
            assert (run.attempt, run.start, run.characters) == (self.attempt, len(self.ids), len(self.text))
            self.ids += run.ids
            self.text += run.text
            if run.end:
                self.end = run


def tokens(text: str | bytes, start: int = 0, end: int = 0, attempt: int = 0, stream: Stream = S) -> Tokens:
    data = text.encode() if isinstance(text, str) else text
    return Tokens((TokenRun(stream, attempt, start, tuple(data), end),))


def opened(core: Detokenizer | None = None, **fields: Any) -> Detokenizer:
    core = Detokenizer(LETTERS) if core is None else core
    core.apply(Open((Opening(S, **({"attempt": 0, "prompt_tail": ()} | fields)),)))
    core.check()
    return core


def only(news: TurnOutput) -> TextRun:
    assert len(news.texts) == 1
    return news.texts[0]


def run_whole(ids: Sequence[int], cuts: Sequence[int], end: End, vocabulary: Vocabulary, **fields: Any) -> Ledger:
    """Feed ids in pieces, collecting after each, as the ledger sees it."""
    core, ledger = opened(Detokenizer(vocabulary), **fields), Ledger()
    edges = [0, *sorted(cuts), len(ids)]
    for start, stop in itertools.pairwise(edges):
        last = int(end) if stop == len(ids) else 0
        core.apply(Tokens((TokenRun(S, 0, start, tuple(ids[start:stop]), last),)))
        core.check()
        ledger.apply(core.collect())
        core.check()
    return ledger


@given(data=st.data())
@settings(deadline=None)
def test_the_deltas_of_any_bundling_add_up_to_the_whole_text(data: st.DataObject) -> None:
    tokenizer = data.draw(st.sampled_from([byte_level(), byte_fallback()]))
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocabulary - 1), max_size=30)) + tokenizer.encode(
        data.draw(st.sampled_from(TEXTS)), add_special_tokens=False
    )
    cuts = data.draw(st.lists(st.integers(0, len(ids)), max_size=6))
    stop = tuple(data.draw(st.lists(st.text(" aelo\ufffd", min_size=1, max_size=3), max_size=3)))
    fields = {"stop": stop, "include_stop": data.draw(st.booleans()), "min_tokens": data.draw(st.integers(0, 20))}
    vocabulary = vocabulary_of(tokenizer)
    ledger = run_whole(ids, cuts, End.LENGTH, vocabulary, **fields)
    assert ledger.end is not None
    if ledger.end.end is End.LENGTH:
        assert ledger.ids == ids
        assert ledger.text == tokenizer.decode(ids)
    else:
        whole = tokenizer.decode(ledger.ids)
        assert len(ledger.ids) >= fields["min_tokens"]
        assert whole.startswith(ledger.text)
        assert ledger.end.matched in stop
        assert ledger.text.endswith(ledger.end.matched) or not fields["include_stop"]
    together = run_whole(ids, (), End.LENGTH, vocabulary, **fields)
    assert (together.ids, together.text) == (ledger.ids, ledger.text)


@given(data=st.data())
@settings(deadline=None)
def test_a_stream_opened_again_anywhere_goes_on_without_loss_or_repetition(data: st.DataObject) -> None:
    ids = list(data.draw(st.sampled_from([*TEXTS, "xxabab stop"])).encode() + data.draw(st.binary(max_size=8)))
    at = data.draw(st.integers(0, len(ids)))
    fields = {"stop": ("stop", "aba"), "min_tokens": data.draw(st.integers(0, 9))}
    undisturbed = run_whole(ids, (), End.LENGTH, LETTERS, **fields)
    core, ledger = opened(**fields), Ledger()
    core.apply(Tokens((TokenRun(S, 0, 0, tuple(ids[:at])),)))
    ledger.apply(core.collect())
    if ledger.end is None:
        core = opened(output_ids=tuple(ledger.ids), characters=len(ledger.text), **fields)
        assert core.collect().gaps == ((Gap(S, at),) if at else ())
        core.apply(Tokens((TokenRun(S, 0, at, tuple(ids[at:]), End.LENGTH),)))
        core.check()
        ledger.apply(core.collect())
    assert (ledger.ids, ledger.text) == (undisturbed.ids, undisturbed.text)


def test_a_stop_string_across_tokens_is_never_shown() -> None:
    core, ledger = opened(stop=("END",)), Ledger()
    shown = []
    for start, piece in enumerate("abENENDxyz"):
        core.apply(tokens(piece, start))
        ledger.apply(core.collect())
        shown.append(ledger.text)
    assert shown == ["a", "ab", "ab", "ab", "abEN", "abEN", "abEN", "abEN", "abEN", "abEN"]
    assert ledger.end is not None
    assert (ledger.end.end, ledger.end.matched, len(ledger.ids)) == (End.STOP, "END", 7)


def test_only_what_may_become_a_stop_string_is_held_back() -> None:
    core = opened(stop=("\n\nUser",))
    core.apply(tokens("one\ntwo\n\nU"))
    assert only(core.collect()).text == "one\ntwo"
    core.apply(tokens("x", 10))
    assert only(core.collect()).text == "\n\nUx"


def test_what_was_held_is_shown_at_the_end() -> None:
    core = opened(stop=("abc",))
    core.apply(tokens("xab", end=End.LENGTH))
    assert astuple(only(core.collect()))[4:8] == (0, "xab", End.LENGTH, "")


@pytest.mark.parametrize(("include", "text"), [(False, "x"), (True, "xEND")])
def test_the_stop_string_is_kept_only_when_asked_for(include: bool, text: str) -> None:
    core = opened(stop=("END",), include_stop=include)
    core.apply(tokens("xENDmore"))
    run = only(core.collect())
    assert (run.text, len(run.ids), run.end) == (text, 4, End.STOP)


@pytest.mark.parametrize(("include", "text"), [(False, "ab"), (True, "ab.")])
def test_the_stop_tokens_text_is_shown_only_when_asked_for(include: bool, text: str) -> None:
    core = opened(end_ids=(ord("."),), include_stop=include)
    core.apply(tokens("ab.", end=End.STOP))
    run = only(core.collect())
    assert (run.text, run.ids, run.end, run.matched) == (text, tuple(b"ab."), End.STOP, str(ord(".")))


def test_a_stop_string_takes_precedence_over_a_stop_token_and_length() -> None:
    for end in (End.STOP, End.LENGTH):
        core = opened(stop=("b",), end_ids=(ord("c"),))
        core.apply(tokens("abc", end=end))
        run = only(core.collect())
        assert (run.end, run.matched, run.ids) == (End.STOP, "b", tuple(b"ab"))


def test_a_stop_string_in_what_was_held_back_takes_precedence_too() -> None:
    core = opened(stop=("\ufffd",))
    core.apply(tokens(b"a\xf0", end=End.LENGTH))
    run = only(core.collect())
    assert (run.text, run.end, run.matched) == ("a", End.STOP, "\ufffd")


def test_min_tokens_delays_stop_strings() -> None:
    core = opened(stop=("ab",), min_tokens=4)
    core.apply(tokens("abxab"))
    run = only(core.collect())
    assert (run.text, len(run.ids), run.end) == ("abx", 5, End.STOP)


def test_special_tokens_count_but_have_no_text() -> None:
    core = opened()
    core.apply(tokens(b"a\x00b"))
    assert astuple(only(core.collect()))[3:6] == ((97, 0, 98), 0, "ab")
    core = opened(skip_special_tokens=False)
    core.apply(tokens(b"a\x00b"))
    assert only(core.collect()).text == "a\x00b"


def test_an_output_cut_inside_a_character_shows_what_the_full_decoding_shows() -> None:
    core = opened()
    core.apply(tokens("a😀".encode()[:-1]))
    assert only(core.collect()).text == "a"
    core.apply(tokens(b"", 4, End.LENGTH))
    run = only(core.collect())
    assert (run.start, run.ids, run.characters, run.text, run.end) == (4, (), 1, "\ufffd", End.LENGTH)


def test_a_stream_may_end_without_a_token_and_with_a_reason() -> None:
    core = opened()
    core.apply(Tokens((TokenRun(S, 0, 0, (), End.ERROR, "out of memory", 3, 9),)))
    assert only(core.collect()) == TextRun(S, 0, 0, (), 0, "", End.ERROR, "", "out of memory", 3, 9)


def test_known_tokens_are_dropped_and_the_rest_is_taken() -> None:
    core = opened()
    core.apply(tokens("abc"))
    core.apply(tokens("abcd"))
    core.apply(tokens("bc", 1))
    assert astuple(only(core.collect()))[2:6] == (0, tuple(b"abcd"), 0, "abcd")
    core.apply(tokens("ab"))
    assert core.collect() == TurnOutput()


def test_an_end_that_comes_after_its_tokens_counts() -> None:
    core = opened()
    core.apply(tokens("abc"))
    core.collect()
    core.apply(tokens("bc", 1, End.LENGTH))
    assert astuple(only(core.collect()))[2:7] == (3, (), 3, "", End.LENGTH)


def test_a_gap_is_asked_for_once_until_it_closes() -> None:
    core = opened()
    core.apply(tokens("ab"))
    core.collect()
    core.apply(tokens("d", 3))
    assert core.collect() == TurnOutput(gaps=(Gap(S, 2),))
    core.apply(tokens("e", 4))
    assert core.collect() == TurnOutput()
    core.apply(tokens("cde", 2))
    assert only(core.collect()).text == "cde"
    core.apply(tokens("g", 6))
    assert core.collect().gaps == (Gap(S, 5),)


def test_a_gap_whose_answer_was_lost_is_asked_for_again() -> None:
    core = opened()
    asked = []
    for start in range(1, 60):
        core.apply(tokens("x", start))
        asked += core.collect().gaps
        core.check()
    assert 2 <= len(asked) <= 5


def test_tokens_of_an_unknown_stream_are_reported_once_a_turn_and_asked_for_when_opened() -> None:
    core = Detokenizer(LETTERS)
    core.apply(tokens("a"))
    core.apply(tokens("b", 1))
    assert core.collect() == TurnOutput(unknown=(S,))
    assert core.collect() == TurnOutput()
    opened(core)
    assert core.collect() == TurnOutput(gaps=(Gap(S, 0),))


def test_a_first_opening_asks_for_nothing() -> None:
    assert opened(stop=("x",)).collect() == TurnOutput()


def test_an_opening_with_ids_asks_for_what_follows_them() -> None:
    core = opened(output_ids=tuple(b"ab"), characters=2, stop=("zz",))
    assert core.collect() == TurnOutput(gaps=(Gap(S, 2),), progress=(Gap(S, 2),))


def test_a_stream_opened_again_while_open_reports_what_the_ledger_lacks() -> None:
    core = opened()
    core.apply(tokens("abcd", end=End.LENGTH))
    core.collect()
    core.apply(Open((Opening(S, 0, (), output_ids=tuple(b"ab"), characters=2),)))
    core.check()
    assert astuple(only(core.collect()))[2:7] == (2, tuple(b"cd"), 2, "cd", End.LENGTH)
    core.apply(Open((Opening(S, 0, (), output_ids=tuple(b"xyz"), characters=3),)))
    core.check()
    assert core.collect() == TurnOutput(gaps=(Gap(S, 3),))


def test_text_that_the_ledger_lacks_for_its_ids_is_sent() -> None:
    core = opened(output_ids=tuple(b"abc"), characters=1)
    assert astuple(only(core.collect()))[2:6] == (3, (), 1, "bc")


def test_a_resend_repeats_ids_text_and_end_from_a_position() -> None:
    core = opened()
    core.apply(tokens("ab é"))
    core.collect()
    core.apply(tokens("d", 5, End.LENGTH))
    core.collect()
    for start, characters, text in ((0, 0, "ab éd"), (2, 2, " éd"), (4, 3, "éd"), (6, 5, "")):
        core.apply(Resend((Gap(S, start),)))
        core.check()
        assert astuple(only(core.collect()))[2:7] == (
            start,
            tuple("ab éd".encode()[start:]),
            characters,
            text,
            End.LENGTH,
        )
    core.apply(Resend((Gap(Stream(9, 9), 0),)))
    assert core.collect() == TurnOutput(unknown=(Stream(9, 9),))


def test_a_higher_attempt_truncates_and_a_lower_one_is_dropped() -> None:
    core, ledger = opened(stop=("cd",)), Ledger()
    core.apply(tokens("abc"))
    ledger.apply(core.collect())
    core.apply(tokens("xc", 1, attempt=1))
    core.check()
    ledger.apply(core.collect())
    core.apply(tokens("zzz", 3, attempt=0))
    core.apply(tokens("d", 3, attempt=1))
    ledger.apply(core.collect())
    assert (ledger.attempt, ledger.text, ledger.ids) == (1, "ax", list(b"axcd"))
    assert ledger.end is not None
    assert ledger.end.matched == "cd"


def test_an_attempt_that_begins_beyond_what_is_known_is_asked_for() -> None:
    core = opened()
    core.apply(tokens("c", 2, attempt=1))
    assert core.collect() == TurnOutput(gaps=(Gap(S, 0),))
    core.apply(tokens("abc", 0, attempt=1))
    assert astuple(only(core.collect()))[1:6] == (1, 0, tuple(b"abc"), 0, "abc")


def test_after_its_end_a_streams_tokens_are_dropped_until_it_is_forgotten() -> None:
    core = opened(stop=("b",))
    core.apply(tokens("abc"))
    assert core.collect().progress == (Gap(S, 2),)
    core.apply(tokens("def", 3))
    assert core.collect() == TurnOutput()
    core.apply(Ended((S,)))
    core.check()
    assert core.streams == 0
    core.apply(tokens("ghi", 6))
    assert core.collect() == TurnOutput()


def test_news_of_a_stream_that_ended_in_the_same_turn_are_dropped() -> None:
    core = opened(stop=("x",))
    core.apply(tokens("abc"))
    core.apply(tokens("d", 9))
    core.apply(Ended((S,)))
    core.check()
    assert core.collect() == TurnOutput()


def test_progress_is_told_for_streams_with_stop_strings_alone() -> None:
    core = opened(stop=("zz",))
    core.apply(tokens("ab"))
    core.apply(tokens("cd", 2))
    assert core.collect().progress == (Gap(S, 4),)
    core = opened()
    core.apply(tokens("ab"))
    assert core.collect().progress == ()


def test_a_scheduler_that_tells_what_is_known_is_told_how_far_the_stream_is() -> None:
    core = opened(stop=("zz",))
    core.apply(tokens("abc"))
    core.collect()
    core.apply(tokens("b", 1))
    core.check()
    assert core.collect() == TurnOutput(progress=(Gap(S, 3),))


def test_what_comes_for_a_stream_that_was_taken_for_ended_is_asked_for_when_it_is_opened_again() -> None:
    core = opened()
    core.apply(Ended((S,)))
    core.apply(tokens("ab"))
    core.apply(Open((Opening(S, 0, ()),)))
    core.check()
    assert core.collect() == TurnOutput(gaps=(Gap(S, 0),))


def test_what_comes_of_a_new_attempt_before_it_is_opened_is_asked_for_when_the_last_one_has_ended() -> None:
    core = opened()
    core.apply(tokens("ab", end=End.LENGTH))
    core.apply(tokens("ab", attempt=1))
    core.collect()
    core.apply(Open((Opening(S, 1, ()),)))
    core.check()
    assert core.collect() == TurnOutput(gaps=(Gap(S, 0),))


def test_one_turn_merges_the_news_of_a_stream_and_keeps_streams_apart() -> None:
    core = Detokenizer(LETTERS)
    streams = [Stream(1, choice) for choice in range(3)]
    core.apply(Open(tuple(Opening(stream, 0, ()) for stream in streams)))
    for position in range(4):
        core.apply(Tokens(tuple(TokenRun(stream, 0, position, (97 + stream.choice,)) for stream in streams)))
    assert [(run.stream, run.text) for run in core.collect().texts] == list(
        zip(streams, ["aaaa", "bbbb", "cccc"], strict=True)
    )


def test_a_new_scheduler_is_asked_for_everything_that_goes_on() -> None:
    core = opened(stop=("zz",))
    core.apply(Open((Opening(Stream(8, 0), 0, ()),)))
    core.apply(tokens("ab", end=End.LENGTH, stream=Stream(8, 0)))
    core.apply(tokens("abc"))
    core.collect()
    core.apply(SchedulerConnected())
    assert core.collect() == TurnOutput(gaps=(Gap(S, 3),), progress=(Gap(S, 3),))


def test_streams_whose_end_was_missed_are_forgotten_once_admission_has_opened_all_others() -> None:
    core = opened()
    kept, new = Opening(Stream(8, 0), 0, ()), Opening(Stream(10, 0), 0, ())
    core.apply(Open((kept, Opening(Stream(9, 0), 0, ()))))
    core.apply(tokens("ab"))
    core.apply(AdmissionConnected())
    core.apply(Open((kept,)))
    core.check()
    assert core.streams == 3
    core.apply(Open((new,), complete=True))
    core.check()
    assert [core.is_open(stream) for stream in (S, Stream(8, 0), Stream(9, 0), Stream(10, 0))] == [
        False,
        True,
        False,
        True,
    ]
    assert core.collect() == TurnOutput()
    core.apply(Open((), complete=True))
    assert core.streams == 2


def test_news_that_could_not_be_sent_are_given_out_again_with_what_has_come_since() -> None:
    core, ledger = opened(stop=("zz",)), Ledger()
    core.apply(tokens("ab"))
    core.apply(tokens("x", 9))
    core.apply(tokens("x", stream=Stream(9, 0)))
    core.put_back(core.collect())
    core.check()
    core.apply(tokens("c", 2, End.LENGTH))
    news = core.collect()
    ledger.apply(news)
    assert ledger.text == "abc"
    assert (news.unknown, news.gaps, news.progress) == ((Stream(9, 0),), (Gap(S, 3),), (Gap(S, 3),))
    core.put_back(news)
    core.apply(Ended((S,)))
    core.check()
    assert core.collect() == TurnOutput(unknown=(Stream(9, 0),))


def test_the_memory_of_ended_streams_is_bounded() -> None:
    core = Detokenizer(LETTERS)
    core.apply(Ended(tuple(Stream(number, 0) for number in range(ENDED_REMEMBERED_MAX + 10))))
    core.check()
    core.apply(tokens("a", stream=Stream(0, 0)))
    core.apply(tokens("a", stream=Stream(ENDED_REMEMBERED_MAX, 0)))
    assert core.collect().unknown == (Stream(0, 0),)


def told(text: str, start: int = 0, end: int = 0) -> Tokens:
    ids = tuple(text.encode())
    likelihoods = tuple(TokenLogprob(-token, ((65, -0.5),)) for token in ids)
    return Tokens((TokenRun(S, 0, start, ids, end, likelihoods=likelihoods),))


def test_log_probabilities_come_with_the_tokens_bytes_and_where_their_text_begins() -> None:
    core = opened(logprobs=True)
    core.apply(told("aé"))
    core.check()
    assert only(core.collect()).logprobs == (
        Logprobs(-97, b"a", 0, (Alternative(65, b"A", -0.5),)),
        Logprobs(-195, b"\xc3", 1, (Alternative(65, b"A", -0.5),)),
        Logprobs(-169, b"\xa9", 1, (Alternative(65, b"A", -0.5),)),
    )
    core.apply(told("b", 3))
    assert [each.character for each in only(core.collect()).logprobs] == [2]


def test_log_probabilities_end_with_the_token_that_completes_a_stop_string() -> None:
    core = opened(logprobs=True, stop=("bc",))
    core.apply(told("abcd"))
    run = only(core.collect())
    assert (run.text, run.ids, [each.token for each in run.logprobs]) == ("a", tuple(b"abc"), [b"a", b"b", b"c"])


def test_log_probabilities_are_reported_again_with_what_was_not_delivered() -> None:
    core = opened(logprobs=True, output_ids=tuple(b"ab"), characters=2)
    core.apply(told("bcd", 1))
    first = core.collect()
    assert [each.logprob for each in only(first).logprobs] == [-99, -100]
    core.put_back(first)
    core.apply(told("e", 4))
    assert [(each.logprob, each.character) for each in only(core.collect()).logprobs] == [
        (-99, 2),
        (-100, 3),
        (-101, 4),
    ]
    core.apply(Resend((Gap(S, 3),)))
    assert [each.logprob for each in only(core.collect()).logprobs] == [-100, -101]


def test_those_who_did_not_ask_get_no_log_probabilities() -> None:
    core = opened()
    core.apply(told("ab"))
    assert only(core.collect()).logprobs == ()
