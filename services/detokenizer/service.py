"""The detokenizer's shell: passes messages to the core, sends its output once per turn, and keeps a span per stream."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, assert_never

import msgspec

from noria.proto.base import End, Ended, Header, Service, Stream
from noria.proto.lifecycle import State
from noria.proto.output import Open, Progress, Resend, Texts, Tokens, Unknown
from noria.services.detokenizer.core.detokenizer import AdmissionConnected, Detokenizer, SchedulerConnected, TurnOutput
from noria.services.detokenizer.core.vocabulary import DecodingScheme, Vocabulary
from noria.services.detokenizer.metrics import DetokenizerMetrics
from noria.shared.actor.actor import Actor
from noria.shared.model import tokenizer as tokenizers
from noria.shared.telemetry.spans import (
    ATTRIBUTE_CHOICE,
    ATTRIBUTE_END,
    ATTRIBUTE_OUTPUT_TOKENS,
    ATTRIBUTE_REQUEST,
    SPAN_STREAM,
)
from noria.shared.telemetry.telemetry import Span, Telemetry

_RETRY_NS: Final = 10_000_000


def load_vocabulary(folder: Path) -> Vocabulary:
    """Load the vocabulary of a model folder's tokenizer. Raises UserError when it cannot be read."""
    return vocabulary_of(tokenizers.Tokenizer.load(folder))


def vocabulary_of(tokenizer: tokenizers.Tokenizer) -> Vocabulary:
    """The vocabulary of a tokenizer."""

    def decode(ids: Sequence[int], skip_special_tokens: bool) -> str:
        return tokenizer.decode(ids, skip_special_tokens)

    return Vocabulary(
        scheme=DecodingScheme(tokenizer.scheme.value),
        pieces=tuple(piece or b"" for piece in tokenizer.byte_table()),
        special=frozenset(tokenizer.special),
        byte_ids=tokenizer.byte_ids(),
        strip_left=tokenizer.strip_left,
        decode=decode,
    )


class DetokenizerService:
    """One detokenizer process: its core between admission and scheduler."""

    def __init__(self, actor: Actor, telemetry: Telemetry, vocabulary: Vocabulary) -> None:
        self._actor = actor
        self._telemetry = telemetry
        self._core = Detokenizer(vocabulary)
        telemetry.add(DetokenizerMetrics(self._core))
        self._spans: dict[Stream, Span] = {}
        self._congested = 0

    def receive(self, sender: Service, header: Header, body: msgspec.Struct) -> None:
        """Apply one message."""
        match body:
            case Tokens() | Resend():
                self._core.apply(body)
            case Open():
                self._core.apply(body)
                self._begin_spans(body)
                if body.complete:
                    for stream in [each for each in self._spans if not self._core.is_open(each)]:
                        self._end_span(stream, "", 0)
            case Ended():
                self._core.apply(body)
                for stream in body.streams:
                    self._end_span(stream, "", 0)
            case _:
                raise AssertionError(f"{sender} sent {header.kind}")

    def joined(self, peer: Service) -> None:
        """Tell the core of a new scheduler or admission."""
        match peer:
            case Service.SCHEDULER:
                self._core.apply(SchedulerConnected())
            case Service.ADMISSION:
                self._core.apply(AdmissionConnected())
            case Service.SUPERVISOR:
                pass
            case Service.GATEWAY | Service.EXECUTOR | Service.DETOKENIZER:
                raise AssertionError(f"the detokenizer has no link to {peer}")
            case _:
                assert_never(peer)

    def lost(self, peer: Service) -> None:
        """Do nothing: streams stay open until admission ends them, also after its restart."""

    def congested(self, peer: Service) -> None:
        """Count a full queue; output that was not taken is sent again by `advance`."""
        self._congested += 1

    def advance(self, now_ns: int) -> int | None:
        """Send the turn's output; returns when to try again, None when all was sent."""
        output = self._core.collect()
        unsent = False
        if output.texts and not self._post(Service.ADMISSION, Texts(output.texts)):
            self._core.put_back(TurnOutput(texts=output.texts))
            unsent = True
        else:
            for run in output.texts:
                if run.end:
                    self._end_span(run.stream, End(run.end).label, run.start + len(run.ids))
        if output.unknown and not self._post(Service.ADMISSION, Unknown(output.unknown)):
            self._core.put_back(TurnOutput(unknown=output.unknown))
            unsent = True
        if output.gaps and not self._post(Service.SCHEDULER, Resend(output.gaps)):
            self._core.put_back(TurnOutput(gaps=output.gaps))
            unsent = True
        if output.progress and not self._post(Service.SCHEDULER, Progress(output.progress)):
            self._core.put_back(TurnOutput(progress=output.progress))
            unsent = True
        return now_ns + _RETRY_NS if unsent else None

    def state(self) -> State:
        """Always READY: the vocabulary is loaded before the mailbox opens."""
        return State.READY

    def progress(self) -> tuple[int, bool]:
        """Tokens decoded so far, and never busy: no work waits between turns."""
        return self._core.tokens, False

    def snapshot(self) -> dict[str, Any]:
        """The detokenizer's part of /debug/state: open streams, spans, tokens decoded, full queues met."""
        return {
            "streams": self._core.streams,
            "spans": len(self._spans),
            "tokens": self._core.tokens,
            "congested": self._congested,
        }

    def drain(self, timeout_ms: int) -> None:
        """Do nothing: streams end when admission ends them."""

    def close(self) -> None:
        """End the spans of streams that are still open."""
        for stream in tuple(self._spans):
            self._end_span(stream, "", 0)

    def _post(self, peer: Service, body: msgspec.Struct) -> bool:
        """Send a message; returns False when it must be sent again. A peer that is not connected gets it all when it joins."""
        return self._actor.send(self, peer, body) or not self._actor.mailbox.links[peer].joined

    def _begin_spans(self, message: Open) -> None:
        if not self._telemetry.enabled:
            return
        for opening in message.openings:
            if opening.stream not in self._spans:
                attributes = {ATTRIBUTE_REQUEST: opening.stream.request, ATTRIBUTE_CHOICE: opening.stream.choice}
                self._spans[opening.stream] = self._telemetry.span(SPAN_STREAM, opening.traceparent, attributes)

    def _end_span(self, stream: Stream, end: str, tokens: int) -> None:
        if (span := self._spans.pop(stream, None)) is not None:
            span.end({ATTRIBUTE_END: end, ATTRIBUTE_OUTPUT_TOKENS: tokens} if end else {})
