"""Writes the event log: every event of the core and every planning time, so that a run can be replayed and explained.

Bounded: a full file becomes PATH.1, replacing the one before it, and the next begins with the streams that live. A disk
that does not take it ends the log, not the scheduler.
"""

import os
import time
from array import array
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO, Final

from msgspec.structs import replace

from noria.proto.base import Ended, Stream
from noria.proto.execution import Geometry, Inventory, StepDone, StepFailed
from noria.proto.output import Progress, Resend
from noria.proto.scheduling import Submission, Submit, Withdraw
from noria.services.scheduler.core.interface.events import (
    AdmissionJoined,
    EventBody,
    ExecutorLost,
    ExecutorReturned,
    ExecutorSilent,
    PolicyChanged,
    TimePassed,
)
from noria.services.scheduler.core.interface.settings import CoreSettings
from noria.services.scheduler.core.state.scheduler_view import SchedulerView, StepSize
from noria.services.scheduler.observe import log_records
from noria.services.scheduler.observe.log_records import HASH_BYTES, AnyLogRecord, SubmissionRecord
from noria.shared.telemetry.log import logger

_SECRET_BYTES: Final = 32
_FLUSH_NS: Final = 1_000_000_000


@dataclass(slots=True, eq=False)
class _LoggedStream:
    """The hashes of a stream's pages so far, and the ids since the last full one."""

    arrival: SubmissionRecord
    end_ids: frozenset[int]
    chain: bytes
    tail: list[int] = field(default_factory=list)
    pages: bytearray = field(default_factory=bytearray)
    outputs: int = 0
    stopped: bool = False


class EventLog:
    """Appends to one file. bytes_max bounds it together with its predecessor.

    page_tokens: the cache's page. view: of the core, to read step sizes.
    """

    def __init__(
        self, path: Path, bytes_max: int, settings: CoreSettings, page_tokens: int, view: SchedulerView
    ) -> None:
        self._path = path
        self._half = bytes_max // 2
        self._settings = settings
        self._page_tokens = page_tokens
        self._view = view
        self._secret = os.urandom(_SECRET_BYTES)
        self._trails: dict[Stream, _LoggedStream] = {}
        self._geometry: Geometry | None = None
        # Of an executor, until admission has named the streams. names_complete: it has.
        self._inventory: Inventory | None = None
        self._recited = False
        self._written = 0
        self._flush_ns = 0
        self._file: BinaryIO | None = self._open()
        self._write(
            log_records.LogBegan(time.monotonic_ns(), log_records.VERSION, int(time.time()), settings, page_tokens)
        )

    @property
    def streams(self) -> int:
        """How many streams it follows."""
        return len(self._trails)

    def record(self, now_ns: int, body: EventBody) -> None:
        """Write an event that the core is about to take."""
        if self._file is not None:
            record = self._record(now_ns, body)
            if record is not None:
                self._write(record)
            if self._inventory is not None and self._recited:
                # It is of use only now, and only now its streams are known.
                self._write(self._listed(now_ns, self._inventory))
                self._inventory = None

    def record_planning(self, now_ns: int) -> None:
        """Write that plans were asked for until there was none."""
        if self._file is not None:
            self._write(log_records.PlanningRecord(now_ns))
            if now_ns >= self._flush_ns and self._file is not None:
                self._flush_ns = now_ns + _FLUSH_NS
                self._flush(self._file)
            if self._written > self._half:
                self._rotate(now_ns)

    def close(self) -> None:
        """Write what is buffered."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _record(self, now_ns: int, body: EventBody) -> AnyLogRecord | None:
        match body:
            case Submit():
                self._recited = self._recited or body.complete
                return log_records.SubmitRecord(now_ns, tuple(map(self._arrival, body.submissions)), body.complete)
            case StepDone():
                return self._completed(now_ns, body)
            case Withdraw():
                return log_records.WithdrawRecord(now_ns, body.streams, body.end)
            case Ended():
                trails = [self._trails.pop(stream, None) for stream in body.streams]
                return log_records.EndedRecord(
                    now_ns, body.streams, tuple(each.outputs if each else -1 for each in trails)
                )
            case Progress():
                return log_records.DetokenizerProgressRecord(now_ns, body)
            case Resend():
                return log_records.ResendRecord(now_ns, body)
            case PolicyChanged():
                return log_records.PolicyChangeRecord(now_ns, body.policy, body.rules)
            case AdmissionJoined() | ExecutorLost() | ExecutorSilent() | ExecutorReturned() | TimePassed():
                self._recited = self._recited and not isinstance(body, AdmissionJoined)
                return log_records.PeerEventRecord(now_ns, type(body).__name__)
            case _:
                return self._of_executor(now_ns, body)

    def _of_executor(self, now_ns: int, body: Geometry | StepFailed | Inventory) -> AnyLogRecord | None:
        match body:
            case Geometry():
                self._geometry, self._inventory = body, None
                return log_records.GeometryRecord(now_ns, body)
            case StepFailed():
                return log_records.StepFailedRecord(now_ns, body)
            case Inventory():
                self._inventory = body
                return None

    def _arrival(self, submission: Submission) -> SubmissionRecord:
        sampling = submission.sampling
        salt = blake2b(submission.salt, key=self._secret, digest_size=HASH_BYTES).digest()
        arrival = SubmissionRecord(
            stream=submission.stream,
            attempt=submission.attempt,
            prompt_tokens=len(submission.prompt_ids),
            pages=b"",
            max_tokens=sampling.max_tokens,
            min_tokens=sampling.min_tokens,
            can_stop=bool(submission.end_ids),
            has_stop_strings=submission.has_stop_strings,
            output_tokens=len(submission.output_ids),
            tenant=submission.tenant,
            traffic_class=submission.traffic_class,
            ttl_first_ms=submission.ttl_first_ms,
            ttl_ms=submission.ttl_ms,
            seniority_ms=submission.seniority_ms,
            service=submission.service,
            doubt=submission.doubt,
        )
        trail = _LoggedStream(arrival, frozenset(submission.end_ids), salt)
        for token in (*submission.prompt_ids, *submission.output_ids):
            self._follow(trail, token)
        trail.outputs = len(submission.output_ids)
        self._trails.setdefault(submission.stream, trail)
        return _with_pages(arrival, trail)

    def _listed(self, now_ns: int, body: Inventory) -> AnyLogRecord:
        stops: list[tuple[Stream, int]] = []
        pages: list[tuple[Stream, bytes]] = []
        for held in body.entries:
            trail = self._trails.get(held.stream)
            for token in held.output_ids[trail.outputs :] if trail is not None else ():
                self._sampled(held.stream, token, stops, pages)
        kept = tuple(
            log_records.HeldRecord(each.stream, each.attempt, each.slot, each.length, each.blocks, len(each.output_ids))
            for each in body.entries
            if each.stream in self._trails
        )
        return log_records.InventoryRecord(now_ns, body.epoch, kept, tuple(stops), tuple(pages))

    def _completed(self, now_ns: int, body: StepDone) -> AnyLogRecord:
        stops: list[tuple[Stream, int]] = []
        pages: list[tuple[Stream, bytes]] = []
        for sampled in body.sampled:
            trail = self._trails.get(sampled.stream)
            if trail is not None and sampled.ids and sampled.start == trail.outputs:
                self._sampled(sampled.stream, sampled.ids[0], stops, pages)
        size = self._view.oldest_step(body.epoch, body.number) or StepSize(0, 0, 0, 0)
        return log_records.StepDoneRecord(
            now_ns,
            body.epoch,
            body.number,
            body.compute_us,
            size.tokens,
            size.cache_tokens,
            size.requests,
            stops=tuple(stops),
            pages=tuple(pages),
            pairs=size.pairs,
        )

    def _sampled(
        self, stream: Stream, token: int, stops: list[tuple[Stream, int]], pages: list[tuple[Stream, bytes]]
    ) -> None:
        """Note a stream's next output id; what follows its end is thrown away."""
        trail = self._trails[stream]
        if trail.stopped:
            return
        trail.outputs += 1
        if token in trail.end_ids and trail.outputs >= trail.arrival.min_tokens:
            trail.stopped = True
            stops.append((stream, trail.outputs - 1))
        page = self._follow(trail, token)
        if page:
            pages.append((stream, page))

    def _follow(self, trail: _LoggedStream, token: int) -> bytes:
        """Add an id; returns the hash of the page that it completes, else nothing."""
        trail.tail.append(token)
        if len(trail.tail) < self._page_tokens:
            return b""
        content = trail.chain + array("q", trail.tail).tobytes()
        trail.chain = blake2b(content, key=self._secret, digest_size=HASH_BYTES).digest()
        trail.pages += trail.chain
        trail.tail.clear()
        return trail.chain

    def _open(self) -> BinaryIO | None:
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            return os.fdopen(descriptor, "wb", buffering=1 << 16)
        except OSError as error:
            self._give_up(error)
            return None

    def _write(self, record: AnyLogRecord) -> None:
        if self._file is not None:
            try:
                self._written += log_records.write(self._file, record)
            except OSError as error:
                self._give_up(error)

    def _flush(self, file: BinaryIO) -> None:
        try:
            file.flush()
        except OSError as error:
            self._give_up(error)

    def _rotate(self, now_ns: int) -> None:
        """Begin a file anew; it names again what lives."""
        try:
            self.close()
            self._path.replace(self._path.with_name(self._path.name + ".1"))
        except OSError as error:
            self._give_up(error)
            return
        self._file = self._open()
        self._written = 0
        unix_s = int(time.time())
        self._write(
            log_records.LogBegan(now_ns, log_records.VERSION, unix_s, self._settings, self._page_tokens, continued=True)
        )
        if self._geometry is not None:
            self._write(log_records.GeometryRecord(now_ns, self._geometry))
        living = tuple(_with_pages(each.arrival, each) for each in self._trails.values())
        self._write(log_records.SubmitRecord(now_ns, living))

    def _give_up(self, error: OSError) -> None:
        self._file = None
        logger("scheduler").warning("event log ended", path=str(self._path), error=str(error))


def _with_pages(arrival: SubmissionRecord, trail: _LoggedStream) -> SubmissionRecord:
    return replace(arrival, pages=bytes(trail.pages), output_tokens=trail.outputs)
