"""The records of the event log: every event of the core and every planning time, without what people wrote.

Token ids never enter the log. A prompt is its length and one short hash for each full page, chained over what went before and
keyed by a secret that is drawn anew for each log and never written: a replay can share what the run shared, and nothing else
can be learned. A record's tag is a fixed string. A file is a sequence of records, each a 4-byte length and a msgpack array.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from noria.proto.base import End, Stream
from noria.proto.execution import Geometry, StepFailed
from noria.proto.output import Progress, Resend
from noria.proto.scheduling import Doubt
from noria.services.scheduler.core.interface.settings import CoreSettings
from noria.services.scheduler.core.interface.traffic_rules import FairRules

VERSION: Final = 1
HASH_BYTES: Final = 8
_LENGTH: Final = struct.Struct("<I")
_RECORD_BYTES_MAX: Final = 1 << 28


class LogRecord(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One record: something that happened at `at_ns` on the scheduler's clock."""

    at_ns: int


class LogBegan(LogRecord, frozen=True, tag="Began"):
    """The first record of a file. page_tokens: ids behind one hash. continued: it goes on from an older file."""

    version: int
    unix_s: int
    settings: CoreSettings
    page_tokens: int
    continued: bool = False


class SubmissionRecord(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A submission without its ids. pages: the hashes of the full pages of prompt and output, one after another.

    output_tokens: those it already had. end_ids, stop strings: only whether there are any.
    """

    stream: Stream
    attempt: int
    prompt_tokens: int
    pages: bytes
    max_tokens: int | None
    min_tokens: int
    can_stop: bool
    has_stop_strings: bool
    output_tokens: int
    tenant: str
    traffic_class: str
    ttl_first_ms: int | None
    ttl_ms: int | None
    seniority_ms: int
    service: float
    doubt: Doubt | None = None


class SubmitRecord(LogRecord, frozen=True, tag="Submitted"):
    """Streams were submitted."""

    arrivals: tuple[SubmissionRecord, ...]
    complete: bool = False


class StepDoneRecord(LogRecord, frozen=True, tag="Completed"):
    """A step was done. tokens, cache_tokens, requests, pairs: its size; 0 when it was none of the steps in flight.

    stops: the streams whose id ends them, and its output position. pages: those that completed a page of ids, and its hash.
    """

    epoch: int
    number: int
    compute_us: int
    tokens: int
    cache_tokens: int
    requests: int
    stops: tuple[tuple[Stream, int], ...] = ()
    pages: tuple[tuple[Stream, bytes], ...] = ()
    pairs: int = 0


class WithdrawRecord(LogRecord, frozen=True, tag="Withdrawn"):
    """Streams were withdrawn."""

    streams: tuple[Stream, ...]
    end: End


class EndedRecord(LogRecord, frozen=True, tag="Forgotten"):
    """Streams ended in the ledger. outputs: how many ids each had made; -1 for one that is unknown."""

    streams: tuple[Stream, ...]
    outputs: tuple[int, ...]


class DetokenizerProgressRecord(LogRecord, frozen=True, tag="Looked"):
    """The detokenizer's `Progress`: how many output ids of each stream with stop strings it has looked at."""

    body: Progress


class ResendRecord(LogRecord, frozen=True, tag="Asked"):
    """The detokenizer asked for ids again."""

    body: Resend


class GeometryRecord(LogRecord, frozen=True, tag="Joined"):
    """An executor is ready."""

    geometry: Geometry


class HeldRecord(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A stream of an inventory, without its ids. slot, blocks: as in `Held`."""

    stream: Stream
    attempt: int
    slot: int
    length: int
    blocks: tuple[tuple[int, ...], ...]
    output_tokens: int


class InventoryRecord(LogRecord, frozen=True, tag="Listed"):
    """The executor listed what it holds. stops, pages: as in `StepDoneRecord`, of the tokens that were not known yet."""

    epoch: int
    entries: tuple[HeldRecord, ...]
    stops: tuple[tuple[Stream, int], ...] = ()
    pages: tuple[tuple[Stream, bytes], ...] = ()


class StepFailedRecord(LogRecord, frozen=True, tag="Failed"):
    """A step failed."""

    body: StepFailed


class PeerEventRecord(LogRecord, frozen=True, tag="Happened"):
    """One of the facts without content, by its name: `AdmissionJoined`, `TimePassed`, and those about the executor."""

    name: str


class PolicyChangeRecord(LogRecord, frozen=True, tag="Changed"):
    """Policy and rules changed."""

    policy: str
    rules: FairRules


class PlanningRecord(LogRecord, frozen=True, tag="Planned"):
    """Plans were asked for until there was none."""


AnyLogRecord = (
    LogBegan
    | SubmitRecord
    | StepDoneRecord
    | WithdrawRecord
    | EndedRecord
    | DetokenizerProgressRecord
    | ResendRecord
    | GeometryRecord
    | StepFailedRecord
    | InventoryRecord
    | PeerEventRecord
    | PolicyChangeRecord
    | PlanningRecord
)

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(AnyLogRecord)


def write(file: BinaryIO, record: AnyLogRecord) -> int:
    """Append one record; returns its bytes."""
    body = _ENCODER.encode(record)
    file.write(_LENGTH.pack(len(body)))
    file.write(body)
    return len(body) + _LENGTH.size


def read(path: Path) -> Iterator[AnyLogRecord]:
    """All whole records of a file; one that was cut off by a crash ends it.

    Raises ValueError for a file that is no event log, or of another format.
    """
    with path.open("rb") as file:
        while len(head := file.read(_LENGTH.size)) == _LENGTH.size:
            (length,) = _LENGTH.unpack(head)
            body = file.read(min(length, _RECORD_BYTES_MAX))
            if len(body) < length:
                return
            try:
                record = _DECODER.decode(body)
            except msgspec.DecodeError as error:
                raise ValueError(f"{path} is not an event log of format {VERSION}: {error}") from error
            if isinstance(record, LogBegan) and record.version != VERSION:
                raise ValueError(
                    f"{path} is an event log of format {record.version}; this version reads format {VERSION}"
                )
            yield record
