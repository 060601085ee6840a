"""One request as its client sees it: its phase, what has arrived of each choice, and what its reader has not read.

Decides what a message means for this request. Knows nothing of sockets, time-outs or other requests.
"""

import asyncio
from dataclasses import dataclass, field
from enum import Enum, auto

from noria.client.choice_buffer import ChoiceBuffer
from noria.client.errors import ClientError
from noria.client.results import Completion, Delta, Finish
from noria.proto import frontdoor
from noria.proto.base import End
from noria.proto.frontdoor import Accepted, Finished, Generate, Have


class CallStatus(Enum):
    """The phase of a call.

    OPENING: sent, not accepted yet. OPEN: accepted. ABANDONED: nobody reads it any more, but the server has not yet
    confirmed its end. OVER: ended or failed.
    """

    OPENING = auto()
    OPEN = auto()
    ABANDONED = auto()
    OVER = auto()


@dataclass(slots=True, eq=False)
class Call:
    """A request under way. joined: it was made by another, so that it cannot be made again from here."""

    generate: Generate
    traceparent: str
    begun_s: float
    phase: CallStatus = CallStatus.OPENING
    accepted: Accepted | None = None
    error: ClientError | None = None
    cancelling: bool = False
    joined: bool = False
    sent: bool = False
    asks: int = 0
    asked_s: float = 0.0
    next_ask_s: float = 0.0
    left_s: float = 0.0
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    _choices: list[ChoiceBuffer] = field(default_factory=list)
    _unread: dict[int, None] = field(default_factory=dict)
    _running: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._choices = [ChoiceBuffer(index) for index in range(max(1, self.generate.n))]
        self._running = set(range(len(self._choices)))

    @property
    def id(self) -> str:
        """The request's id."""
        return self.generate.id

    @property
    def outlives_reader(self) -> bool:
        """Whether the request goes on without a reader, because it has `keep` or `background`."""
        return self.generate.keep or self.generate.background

    @property
    def empty(self) -> bool:
        """Whether nothing of the answer has arrived."""
        return not any(choice.ids or choice.characters or choice.finish for choice in self._choices)

    def accept(self, accepted: Accepted) -> None:
        """Note that the server has accepted the request."""
        self.accepted = accepted
        if self.phase is CallStatus.OPENING:
            self.phase = CallStatus.OPEN
        self.changed.set()

    def add_delta(self, delta: frontdoor.Delta) -> bool:
        """Add one delta; False when something before it is missing."""
        if not 0 <= delta.index < len(self._choices):
            return True
        taken = self._choices[delta.index].add(delta)
        if taken:
            self._mark_unread(delta.index)
        return taken

    def contradicts(self, delta: frontdoor.Delta) -> bool:
        """Whether a delta has other ids for tokens of the same attempt that have arrived already."""
        return 0 <= delta.index < len(self._choices) and self._choices[delta.index].contradicts(delta)

    def add_finished(self, finished: Finished) -> bool:
        """Add the end of one choice; False when tokens before it are missing."""
        if not 0 <= finished.index < len(self._choices):
            return True
        finish = Finish(
            reason=finished.end.label,
            prompt_tokens=finished.prompt_tokens,
            output_tokens=finished.output_tokens,
            cached_tokens=finished.cached_tokens,
            matched=finished.matched,
            detail=finished.detail,
            timings=finished.timings,
        )
        # The choices of an abandoned call have ended here already, so nothing is fetched that nobody reads.
        taken = self._choices[finished.index].end(finish)
        if taken:
            self._running.discard(finished.index)
            if not self._running:
                self.phase = CallStatus.OVER
            self._mark_unread(finished.index)
        return taken

    def fail(self, error: ClientError) -> None:
        """End the call with an error, which its reader gets after everything that has arrived."""
        if self.phase is not CallStatus.OVER:
            self.error = error
            self.phase = CallStatus.OVER
            self.changed.set()

    def cancelled(self, *, over: bool) -> None:
        """Close every open choice as cancelled without waiting for the server; `over`: it will not answer at all."""
        for choice in self._choices:
            if choice.finish is None:
                choice.finish = Finish(End.CANCELLED.label, output_tokens=len(choice.ids))
                self._mark_unread(choice.index)
        self.phase = CallStatus.OVER if over else CallStatus.ABANDONED
        self.changed.set()

    def have(self) -> tuple[Have, ...]:
        """What has arrived of each choice, for attaching again."""
        return tuple(Have(choice.index, choice.attempt, len(choice.ids), choice.characters) for choice in self._choices)

    def read(self) -> Delta | None:
        """What is unread of the next choice, in order of arrival, as one delta; None when all is read."""
        while self._unread:
            index = next(iter(self._unread))
            del self._unread[index]
            delta = self._choices[index].read()
            if delta is not None:
                return delta
        return None

    def completion(self) -> Completion:
        """The whole answer, once over without an error."""
        return Completion(self.id, self.accepted, tuple(choice.choice() for choice in self._choices))

    def _mark_unread(self, index: int) -> None:
        self._unread[index] = None
        self.changed.set()
