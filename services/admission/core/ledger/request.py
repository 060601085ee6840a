"""A request as admission keeps it: its key, its stage, and the output of each of its choices.

Only the ledger changes the stage:

    Generate, Preview
        │ Ledger.reserve: the key is taken, credit is reserved
        ▼
    TOKENIZING ── refused, expired, abandoned, or a preview answered ──▶ forgotten
        │ Ledger.accept: submitted to the scheduler, written to the journal
        ▼
    LIVE ◀── Ledger.readmit: taken over from the journal
        │ Ledger.end of the last choice: stop, length, cancelled, deadline, shed or error
        ▼
    ENDED ── acknowledged (not with `keep` or in the background), or its retention is over ──▶ forgotten

A cancel while TOKENIZING accepts the request and ends it at once, so that its client gets an ordinary end. A request that
has ended in the journal is readmitted as ENDED.
"""

from array import array
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

from noria.proto.base import End, Logprobs, Stream
from noria.proto.sampling import Sampling


class RequestKey(NamedTuple):
    """The name of a request: its tenant, and the id that its client gave it."""

    tenant: str
    id: str


class RequestStage(Enum):
    """The stage of a request: its prompt is being tokenized, its streams run, or all of them have ended."""

    TOKENIZING = auto()
    LIVE = auto()
    ENDED = auto()


class OutputText:
    """The output text of a stream, which grows and is read near its end.

    Appending to one string copies all of it each time (a 40 kB answer: 160 MB), so new pieces are kept apart and merged
    now and then.
    """

    __slots__ = ("_head", "_tail", "length")

    def __init__(self) -> None:
        self._head = ""
        self._tail: list[str] = []
        self.length = 0

    def append(self, piece: str) -> None:
        """Add to the end."""
        if piece:
            self._tail.append(piece)
            self.length += len(piece)
            if len(self._tail) >= 256:
                self._merge()

    def since(self, characters: int) -> str:
        """The text from a character position on."""
        missing = self.length - characters
        if missing <= 0:
            return ""
        if self._tail and missing <= len(self._tail[-1]):
            return self._tail[-1][-missing:]
        self._merge()
        return self._head[characters:]

    def truncate(self, characters: int) -> None:
        """Keep only so many characters."""
        self._merge()
        self._head = self._head[:characters]
        self.length = len(self._head)

    def _merge(self) -> None:
        self._head += "".join(self._tail)
        self._tail.clear()


@dataclass(slots=True, eq=False)
class ChoiceRecord:
    """One stream: what it samples by, what it has emitted, how it ended. Times are monotonic nanoseconds.

    logprobs: of each id, where the request asks for them.
    """

    stream: Stream
    sampling: Sampling
    attempt: int = 0
    ids: "array[int]" = field(default_factory=lambda: array("i"))
    text: OutputText = field(default_factory=OutputText)
    end: End | None = None
    matched: str = ""
    detail: str = ""
    cached_tokens: int = 0
    queue_us: int = 0
    first_token_ns: int | None = None
    last_token_ns: int = 0
    ended_ns: int = 0
    logprobs: list[Logprobs] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Request:
    """One request. `number` names it inside the stack; `client` is who sent it first.

    The prompt's text is not kept, and its ids only until the last choice has ended. deadline_first_ns and deadline_ns
    are admission's own clock for the time to the first token and to the end. preview: only asked about, never accepted.
    keep: a repetition is answered from here even after its end was acknowledged. background: it goes on without a reader,
    and an acknowledgement does not end its retention. grace_ns: how long it goes on without its reader.
    reserved_tokens: what its tenant was charged beforehand.
    """

    number: int
    key: RequestKey
    client: str
    digest: bytes
    model: str
    sampling: Sampling
    n: int
    seed: int
    traceparent: str
    traffic_class: str
    received_ns: int
    deadline_first_ns: int | None = None
    deadline_ns: int | None = None
    characters: int = 0
    stage: RequestStage = RequestStage.TOKENIZING
    accepted_ns: int = 0
    prompt: "array[int]" = field(default_factory=lambda: array("i"))
    prompt_tokens: int = 0
    end_ids: tuple[int, ...] = ()
    choices: list[ChoiceRecord] = field(default_factory=list)
    unfinished: int = 0
    preview: bool = False
    keep: bool = False
    background: bool = False
    grace_ns: int = 0
    reserved_tokens: int = 0

    @property
    def reserved_streams(self) -> int:
        """How many streams are reserved for it while its prompt is being tokenized; 0 for a preview."""
        return 0 if self.preview else self.n
