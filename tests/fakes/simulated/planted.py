"""Faults planted into the product's own code while a universe runs, one at a time: each must be noticed.

The scheduler's memory faults do not check themselves: the executor's map and the tokens must give them away.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Final

from fakes.faults import FreedWhileRead, MissedReference, ShortRing, SwappedPages, SwappedTable, WrongCarry

from noria.client.assembly import Assembly
from noria.proto import frontdoor
from noria.proto.base import Header
from noria.proto.execution import StepPlan
from noria.proto.output import TextRun, TokenRun
from noria.proto.scheduling import Submit
from noria.services.detokenizer.core.detokenizer import Detokenizer
from noria.services.detokenizer.core.stream import StreamText
from noria.services.executor.slots import Slots
from noria.services.scheduler import service as scheduler_module
from noria.services.scheduler.core.intake import Intake
from noria.services.scheduler.core.scheduler import Scheduler
from noria.shared.mailbox import Mailbox

Fault = Callable[[], AbstractContextManager[None]]


@contextlib.contextmanager
def _planted(owner: Any, name: str, value: object) -> Iterator[None]:
    """While this lasts, the class or module has something else under this name."""
    sound = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, sound)


def _core(faulty: type[Scheduler]) -> Fault:
    """The scheduler has another core."""
    return lambda: _planted(scheduler_module, "Scheduler", faulty)


def _stale_incarnation() -> AbstractContextManager[None]:
    """A mailbox takes mail for an earlier life, and of one."""

    def current(self: Mailbox, header: Header) -> bool:
        return any(peer.value == header.sender for peer in self.links)

    return _planted(Mailbox, "current", current)


def _lost_end() -> AbstractContextManager[None]:
    """Every third end of a stream is taken for told and is not."""
    sound, count = StreamText.report, [0]

    def report(self: StreamText) -> TextRun:
        ending = self.ending
        count[0] += ending is not None
        if count[0] % 3 == 0:
            self.ending = None
        run = sound(self)
        self.ending, self.ending_reported = ending, ending is not None
        return run

    return _planted(StreamText, "report", report)


def _double_submit() -> AbstractContextManager[None]:
    """A stream that is known is taken again, as if it were new."""

    def submit(self: Intake, now_ns: int, body: Submit) -> None:
        for submission in body.submissions:
            self._unnamed.pop(submission.stream, None)
            known = self._board.requests.get(submission.stream)
            if known is not None:
                self._board.forget(known, now_ns, "again", reclaim=False)
            self._take(now_ns, submission)

    return _planted(Intake, "submit", submit)


def _old_plan() -> AbstractContextManager[None]:
    """The executor applies plans of an epoch that is over."""

    def belongs(self: Slots, plan: StepPlan) -> bool:
        return True

    return _planted(Slots, "belongs", belongs)


def _duplicate_delta() -> AbstractContextManager[None]:
    """A client takes what it has for new when it is sent again."""
    sound = Assembly.take

    def take(self: Assembly, delta: frontdoor.Delta) -> bool:
        if self.finish is None and delta.start < len(self.ids):
            start, characters = len(self.ids), self.characters
            return sound(
                self, frontdoor.Delta(delta.id, delta.index, delta.attempt, start, delta.ids, characters, delta.text)
            )
        return sound(self, delta)

    return _planted(Assembly, "take", take)


def _ignored_start() -> AbstractContextManager[None]:
    """The detokenizer appends whatever ids come, wherever they start."""
    sound = Detokenizer._take

    def take(self: Detokenizer, run: TokenRun) -> None:
        held = self._streams.get(run.stream)
        start = run.start if held is None else len(held.ids)
        sound(self, TokenRun(run.stream, run.attempt, start, run.ids, run.end, run.detail))

    return _planted(Detokenizer, "_take", take)


FAULTS: Final[dict[str, Fault]] = {
    "missed reference count": _core(MissedReference),
    "early free": _core(FreedWhileRead),
    "swapped page": _core(SwappedPages),
    "swapped table": _core(SwappedTable),
    "ring overwrite": _core(ShortRing),
    "wrong carry": _core(WrongCarry),
    "stale incarnation accepted": _stale_incarnation,
    "lost end": _lost_end,
    "double submit": _double_submit,
    "plan of an old epoch applied": _old_plan,
    "duplicate delta": _duplicate_delta,
    "ignored start": _ignored_start,
}
