"""Computes the right answer of a request, from nothing but the request itself."""

import codecs
from dataclasses import dataclass, replace
from typing import Final

from fakes.executor import EOS, VOCABULARY, alone

from noria.proto.base import Alternative, End, Logprobs
from noria.proto.frontdoor import Generate
from noria.proto.sampling import Sampling
from noria.services.admission.core.intake.effective_sampling import (
    choice_seed,
    effective_sampling,
    effective_seed,
    end_ids,
)
from noria.services.detokenizer.core.vocabulary import DecodingScheme, Vocabulary

_PIECES: Final = (
    [b"<eos>", b" ", b"\n", b"ab", b"bc", b"\xc3", b"\xa9", b"\xe2\x82", b"\xac", "ü".encode(), b"q ", b" q", b""]
    + [bytes([letter]) for letter in b"abcdefghijklmnopqrs"]
)  # fmt: skip
STOPS: Final = ("a", "bc", "é", "q", "b", "€", "k\n", " a", "ef")
TEXTS: Final = ("abc ", "die bc", "qq ab", "hello", "cab")


def vocabulary() -> Vocabulary:
    """Return a small vocabulary: letters, longer pieces, a special id, and characters that are split over ids."""
    assert len(_PIECES) == VOCABULARY
    return Vocabulary(DecodingScheme.BYTES, tuple(_PIECES), frozenset({EOS}))


def tokenize(text: str) -> tuple[int, ...]:
    """Tokenize as the simulated tokenizer does: one id for each letter."""
    return tuple(_PIECES.index(letter.encode()) for letter in text if letter.encode() in _PIECES)


@dataclass(frozen=True, slots=True)
class Answer:
    """The whole answer of one choice. logprobs: of each id, where the request asks for them."""

    ids: tuple[int, ...]
    text: str
    end: End
    matched: str
    logprobs: tuple[Logprobs, ...] = ()


def prompt_of(request: Generate) -> tuple[int, ...]:
    """Return the ids of a request's prompt."""
    return request.token_ids if request.token_ids is not None else tokenize(request.prompt or "")


def answer(request: Generate, index: int) -> Answer:
    """Return the answer of one choice of a request, which must fix seed and length."""
    given = request.sampling
    assert given.seed is not None and given.max_tokens is not None
    sampling = effective_sampling(given, choice_seed(effective_seed(given.seed), index), given.max_tokens, VOCABULARY)
    ends = end_ids(given, (EOS,))
    whole = alone(prompt_of(request), sampling, ends, given.max_tokens)
    right = _stopped(whole, sampling, ends)
    return replace(right, logprobs=_logprobs(right.ids, sampling))


def is_unknown(logprobs: Logprobs) -> bool:
    """Return whether log-probabilities are placeholders: those of a token whose values died with a process."""
    return logprobs.logprob == -9999.0 and not logprobs.top


def _logprobs(ids: tuple[int, ...], sampling: Sampling) -> tuple[Logprobs, ...]:
    if sampling.logprobs is None:
        return ()
    found = []
    for count, token in enumerate(ids):
        likeliest = [(token + each) % VOCABULARY for each in range(sampling.logprobs)]
        top = tuple(Alternative(each, _PIECES[each], -float(each)) for each in likeliest)
        found.append(Logprobs(-float(token), _PIECES[token], len(_text(ids[:count], sampling, ended=False)), top))
    return tuple(found)


def prefix_text(request: Generate, ids: tuple[int, ...]) -> str:
    """Return the longest text that a client can have received for these first ids of an answer."""
    return _text(ids, request.sampling, ended=True)


def _text(ids: tuple[int, ...] | list[int], sampling: Sampling, *, ended: bool) -> str:
    skipped = {EOS} if sampling.skip_special_tokens else set()
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return decoder.decode(b"".join(_PIECES[each] for each in ids if each not in skipped), final=ended)


def _stopped(whole: list[int], sampling: Sampling, ends: tuple[int, ...]) -> Answer:
    natural = whole[-1] in ends and len(whole) >= sampling.min_tokens
    shown = whole[:-1] if natural and not sampling.include_stop else whole
    for count in range(1, len(whole) + 1):
        before = len(_text(whole[: count - 1], sampling, ended=False))
        last = count == len(whole)
        text = _text(shown if last else whole[:count], sampling, ended=last)
        found = _first_completed(text, before, sampling) if count >= sampling.min_tokens else None
        if found is not None:
            stop, end = found
            return Answer(
                tuple(whole[:count]), text[: end if sampling.include_stop else end - len(stop)], End.STOP, stop
            )
    matched = str(whole[-1]) if natural else ""
    return Answer(tuple(whole), _text(shown, sampling, ended=True), End.STOP if natural else End.LENGTH, matched)


def _first_completed(text: str, before: int, sampling: Sampling) -> tuple[str, int] | None:
    """Return the stop string that is complete first after `before` characters, and its end; of several, the first in the list."""
    for end in range(before + 1, len(text) + 1):
        for stop in sampling.stop:
            if text[:end].endswith(stop):
                return stop, end
    return None
