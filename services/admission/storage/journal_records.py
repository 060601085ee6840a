"""Encodes and decodes the rows of the journal: requests, output of streams, and counters.

Fields are only appended, with defaults, so that a newer version reads what an older one wrote. A body of format 2 is the byte
0xC1, which begins nothing in MessagePack, a CRC-32 of what follows and of the row it belongs to, and MessagePack; one of
format 1 is MessagePack alone. Both are read, format 2 is written. Times are on the wall's clock, because those of a process
that is gone say nothing to the next; `WallClockOffset` turns one into the other.
"""

import time
import zlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Final

import msgspec

from noria.proto.base import End, Stream
from noria.proto.frontdoor import Code
from noria.proto.sampling import Sampling
from noria.services.admission.core.ledger.request import ChoiceRecord, Request, RequestKey
from noria.services.admission.core.ledger.unsaved_changes import JournalPart
from noria.services.admission.core.tenants.class_totals import (
    ClassTotals,
    MeasureHistogram,
    MeasureKey,
    StreamMeasure,
    TokenUsage,
    UsageKey,
)


@dataclass(frozen=True, slots=True)
class WallClockOffset:
    """The wall's clock minus that of this process, in nanoseconds."""

    offset_ns: int

    @classmethod
    def read(cls) -> "WallClockOffset":
        """The offset at this moment."""
        return cls(time.time_ns() - time.monotonic_ns())

    def wall(self, own_ns: int) -> int:
        """A monotonic time of this process as wall-clock time; 0 stays 0."""
        return own_ns + self.offset_ns if own_ns else 0

    def monotonic(self, wall_ns: int) -> int:
        """A wall-clock time as a monotonic time of this process; 0 stays 0."""
        return wall_ns - self.offset_ns if wall_ns else 0


class _StoredRequest(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """An accepted request without what its choices emitted. Times in nanoseconds on the wall's clock, 0 for none."""

    tenant: str
    id: str
    client: str
    digest: bytes
    model: str
    sampling: Sampling
    n: int
    seed: int
    traceparent: str
    traffic_class: str
    received: int
    accepted: int
    deadline_first: int
    deadline: int
    prompt: bytes
    prompt_tokens: int
    end_ids: tuple[int, ...]
    choices: tuple[Sampling, ...]
    characters: int
    keep: bool
    background: bool
    grace: int
    reserved_tokens: int


class _StoredHistogram(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A distribution: of which measure and end, its sum, and its counts."""

    measure: int
    end: int
    total: int
    counts: tuple[int, ...]


class _StoredTotals(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The counters of one tenant and class as stored: ends by `End` from the first on, refusals by code."""

    accepted: int
    ended: tuple[int, ...]
    refused: dict[str, int]
    used: tuple[int, ...]
    prompt_tokens: int
    generated: int
    reclaim_us_max: int
    measured: tuple[_StoredHistogram, ...]


class _StoredPage(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A page's parts, written at a time of the wall's clock by a process whose clock was `offset` behind it.

    counted: what happened, by tenant and class.
    """

    written: int
    offset: int
    parts: tuple[JournalPart, ...]
    counted: tuple[tuple[str, str, _StoredTotals], ...] = ()


# Not `astuple`, which copies deeply: it took a third of the time of a page.
_USED: Final = attrgetter(*(each.name for each in fields(TokenUsage)))
_ENCODER: Final = msgspec.msgpack.Encoder()
_REQUEST_DECODER: Final = msgspec.msgpack.Decoder(_StoredRequest)
_PAGE_DECODER: Final = msgspec.msgpack.Decoder(_StoredPage)
_TOTALS_DECODER: Final = msgspec.msgpack.Decoder(_StoredTotals)


_SEALED: Final = b"\xc1"
_SEAL_BYTES: Final = 5


def seal(body: bytes, *row: object) -> bytes:
    """Put a checksum before a MessagePack body (format 2). row: other columns of its row, which the checksum covers."""
    return b"".join((_SEALED, _check(body, row).to_bytes(4, "little"), body))


def unseal(body: bytes, *row: object) -> bytes:
    """The MessagePack of a body of either format. Raises ValueError when it is not what was written into this row."""
    if body[:1] != _SEALED:
        return body
    content = body[_SEAL_BYTES:]
    if int.from_bytes(body[1:_SEAL_BYTES], "little") != _check(content, row):
        raise ValueError("a checksum is wrong")
    return content


def _check(body: bytes, row: tuple[object, ...]) -> int:
    return zlib.crc32(body, zlib.crc32(repr(row).encode()))


def encode_request(request: Request, clock: WallClockOffset) -> bytes:
    """A request as it was accepted."""
    body = _ENCODER.encode(
        _StoredRequest(
            tenant=request.key.tenant,
            id=request.key.id,
            client=request.client,
            digest=request.digest,
            model=request.model,
            sampling=request.sampling,
            n=request.n,
            seed=request.seed,
            traceparent=request.traceparent,
            traffic_class=request.traffic_class,
            received=clock.wall(request.received_ns),
            accepted=clock.wall(request.accepted_ns),
            deadline_first=clock.wall(request.deadline_first_ns or 0),
            deadline=clock.wall(request.deadline_ns or 0),
            prompt=request.prompt.tobytes(),
            prompt_tokens=request.prompt_tokens,
            end_ids=request.end_ids,
            choices=tuple(choice.sampling for choice in request.choices),
            characters=request.characters,
            keep=request.keep,
            background=request.background,
            grace=request.grace_ns,
            reserved_tokens=request.reserved_tokens,
        )
    )
    return seal(body, request.number)


def decode_request(number: int, body: bytes, clock: WallClockOffset) -> Request:
    """The request, with choices that have emitted nothing. Raises msgspec.DecodeError or ValueError."""
    stored = _REQUEST_DECODER.decode(unseal(body, number))
    prompt = array("i")
    prompt.frombytes(stored.prompt)
    return Request(
        number=number,
        key=RequestKey(stored.tenant, stored.id),
        client=stored.client,
        digest=stored.digest,
        model=stored.model,
        sampling=stored.sampling,
        n=stored.n,
        seed=stored.seed,
        traceparent=stored.traceparent,
        traffic_class=stored.traffic_class,
        received_ns=clock.monotonic(stored.received),
        deadline_first_ns=clock.monotonic(stored.deadline_first) if stored.deadline_first else None,
        deadline_ns=clock.monotonic(stored.deadline) if stored.deadline else None,
        characters=stored.characters,
        accepted_ns=clock.monotonic(stored.accepted),
        prompt=prompt,
        prompt_tokens=stored.prompt_tokens,
        end_ids=stored.end_ids,
        choices=[ChoiceRecord(Stream(number, index), sampling) for index, sampling in enumerate(stored.choices)],
        keep=stored.keep,
        background=stored.background,
        grace_ns=stored.grace,
        reserved_tokens=stored.reserved_tokens,
    )


def encode_parts(
    parts: Sequence[JournalPart],
    written_ns: int,
    clock: WallClockOffset,
    counted: Iterable[tuple[UsageKey, ClassTotals]] = (),
) -> bytes:
    """Encode new output of streams, and what it adds to the counters."""
    totals = tuple((*usage_key, _encode_totals(class_totals)) for usage_key, class_totals in counted)
    return seal(_ENCODER.encode(_StoredPage(clock.wall(written_ns), clock.offset_ns, tuple(parts), totals)))


def decode_parts(
    body: bytes, clock: WallClockOffset
) -> tuple[int, list[JournalPart], list[tuple[UsageKey, ClassTotals]]]:
    """When it was written, the parts, on this process's clock, and what happened. Raises msgspec.DecodeError or ValueError."""
    read = _PAGE_DECODER.decode(unseal(body))
    shift_ns = read.offset - clock.offset_ns
    parts = [
        part._replace(
            first_token_ns=part.first_token_ns and part.first_token_ns + shift_ns,
            ended_ns=part.ended_ns and part.ended_ns + shift_ns,
            last_token_ns=part.last_token_ns and part.last_token_ns + shift_ns,
        )
        for part in read.parts
    ]
    return (
        clock.monotonic(read.written),
        parts,
        [(UsageKey(*whose), _decode_totals(each)) for *whose, each in read.counted],
    )


def encode_class_totals(usage_key: UsageKey, class_totals: ClassTotals) -> bytes:
    """Encode the counters of one tenant and class."""
    return seal(_ENCODER.encode(_encode_totals(class_totals)), *usage_key)


def decode_class_totals(usage_key: UsageKey, body: bytes) -> ClassTotals:
    """The counters of one tenant and class. Raises msgspec.DecodeError or ValueError."""
    return _decode_totals(_TOTALS_DECODER.decode(unseal(body, *usage_key)))


def _encode_totals(class_totals: ClassTotals) -> _StoredTotals:
    return _StoredTotals(
        class_totals.accepted,
        tuple(class_totals.ended[end] for end in End),
        {code.value: count for code, count in class_totals.refused.items()},
        _USED(class_totals.used),
        class_totals.prompt_tokens,
        class_totals.generated,
        class_totals.reclaim_us_max,
        tuple(
            _StoredHistogram(*measure_key, each.total, tuple(each.counts))
            for measure_key, each in class_totals.measured.items()
        ),
    )


def _decode_totals(read: _StoredTotals) -> ClassTotals:
    return ClassTotals(
        used=TokenUsage(*read.used),
        accepted=read.accepted,
        ended=dict.fromkeys(End, 0) | dict(zip(End, read.ended, strict=False)),
        refused={code: read.refused[code.value] for code in Code if code.value in read.refused},
        prompt_tokens=read.prompt_tokens,
        generated=read.generated,
        reclaim_us_max=read.reclaim_us_max,
        measured={
            MeasureKey(StreamMeasure(each.measure), each.end): MeasureHistogram(list(each.counts), each.total)
            for each in read.measured
        },
    )


def apply_part(choice: ChoiceRecord, part: JournalPart) -> None:
    """Read a part into a choice. Raises ValueError when something before it is missing."""
    if part.start > len(choice.ids) or part.characters > choice.text.length:
        raise ValueError(f"tokens are missing before position {part.start} of {choice.stream}")
    choice.attempt = part.attempt
    del choice.ids[part.start :], choice.logprobs[part.start :]
    choice.text.truncate(part.characters)
    choice.ids.extend(part.ids)
    choice.text.append(part.text)
    choice.logprobs.extend(part.logprobs)
    choice.cached_tokens, choice.queue_us = part.cached_tokens, part.queue_us
    choice.first_token_ns = part.first_token_ns or choice.first_token_ns
    choice.last_token_ns = part.last_token_ns or choice.last_token_ns
    if part.end:
        choice.end, choice.matched, choice.detail = End(part.end), part.matched, part.detail
        choice.ended_ns = part.ended_ns
