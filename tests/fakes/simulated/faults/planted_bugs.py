"""Bugs planted into the product's own code while a simulation runs, one at a time: a run must notice each.

The scheduler's memory bugs are found by the fake executor's map or by wrong tokens, not by the core's own checks.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Final

from fakes.faults import FreedWhileRead, MissedReference, ShortRing, SwappedPages, SwappedTable, WrongCarry
from fakes.simulated.faults import planted_adoption_bugs
from fakes.simulated.faults.planted_adoption_bugs import Fault, planted
from msgspec import structs

from noria.client.choice_buffer import ChoiceBuffer
from noria.proto import frontdoor
from noria.proto.base import Header
from noria.proto.execution import StepPlan
from noria.proto.output import TextRun, TokenRun
from noria.proto.scheduling import Expenses, Spent, Submit
from noria.services.admission.core.ledger.unsaved_changes import JournalPage
from noria.services.admission.core.ledger.usage_counters import UsageCounters
from noria.services.admission.service import AdmissionService
from noria.services.admission.storage.database import DatabaseWrite
from noria.services.admission.storage.journal import Journal
from noria.services.admission.storage.journal_records import WallClockOffset as WallClock
from noria.services.detokenizer.core.detokenizer import Detokenizer
from noria.services.detokenizer.core.output_stream import StreamText
from noria.services.executor.plan.slot_table import SlotTable
from noria.services.scheduler import service as scheduler_module
from noria.services.scheduler import token_batches as bundle_module
from noria.services.scheduler.core.handlers.stream_handler import StreamHandler
from noria.services.scheduler.core.scheduler import Scheduler
from noria.services.scheduler.core.state.request import Request
from noria.services.scheduler.core.state.suspects import Suspects
from noria.services.scheduler.stream_costs import StreamCosts
from noria.shared.actor.mailbox import Mailbox


def _core(faulty: type[Scheduler]) -> Fault:
    """Return a bug that gives the scheduler another core."""
    return lambda: planted(scheduler_module, "Scheduler", faulty)


def _stale_incarnation() -> AbstractContextManager[None]:
    """A mailbox accepts mail for and from an earlier incarnation."""

    def is_current(self: Mailbox, header: Header) -> bool:
        return any(peer.value == header.sender for peer in self.links)

    return planted(Mailbox, "is_current", is_current)


def _lost_end() -> AbstractContextManager[None]:
    """Every third end of a stream is counted as sent and is not."""
    sound, count = StreamText.report, [0]

    def report(self: StreamText) -> TextRun:
        ending = self.ending
        count[0] += ending is not None
        if count[0] % 3 == 0:
            self.ending = None
        run = sound(self)
        self.ending, self.ending_reported = ending, ending is not None
        return run

    return planted(StreamText, "report", report)


def _double_submit() -> AbstractContextManager[None]:
    """The scheduler accepts a known stream as if it were new."""

    def submit(self: StreamHandler, now_ns: int, body: Submit) -> None:
        for submission in body.submissions:
            self._unnamed.pop(submission.stream, None)
            known = self._state.requests.get(submission.stream)
            if known is not None:
                self._lifecycle.forget(known, now_ns, "again", reclaim=False)
            self._take(now_ns, submission)

    return planted(StreamHandler, "submit", submit)


def _old_plan() -> AbstractContextManager[None]:
    """The executor applies plans of an epoch that is over."""

    def belongs(self: SlotTable, plan: StepPlan) -> bool:
        return True

    return planted(SlotTable, "belongs", belongs)


def _duplicate_delta() -> AbstractContextManager[None]:
    """A client appends ids that it has already when they are sent again."""
    sound = ChoiceBuffer.add

    def add(self: ChoiceBuffer, delta: frontdoor.Delta) -> bool:
        if self.finish is None and delta.start < len(self.ids):
            start, characters = len(self.ids), self.characters
            return sound(
                self, frontdoor.Delta(delta.id, delta.index, delta.attempt, start, delta.ids, characters, delta.text)
            )
        return sound(self, delta)

    return planted(ChoiceBuffer, "add", add)


def _ignored_start() -> AbstractContextManager[None]:
    """The detokenizer appends whatever ids come, wherever they start."""
    sound = Detokenizer._apply_run

    def take(self: Detokenizer, run: TokenRun) -> None:
        held = self._streams.get(run.stream)
        start = run.start if held is None else len(held.ids)
        sound(self, TokenRun(run.stream, run.attempt, start, run.ids, run.end, run.detail))

    return planted(Detokenizer, "_apply_run", take)


def _ignored_attempt() -> AbstractContextManager[None]:
    """The scheduler ignores a new attempt of a stream that it knows."""

    def submit(self: StreamHandler, now_ns: int, body: Submit) -> None:
        known = tuple(each for each in body.submissions if each.stream not in self._state.requests)
        for each in body.submissions:
            self._unnamed.pop(each.stream, None)
        sound(self, now_ns, Submit(known, body.complete))

    sound = StreamHandler.submit
    return planted(StreamHandler, "submit", submit)


def _skipped_commit() -> AbstractContextManager[None]:
    """Every third page of the journal is counted as written and is not."""
    sound, count = Journal.write, [0]

    def write(self: Journal, page: JournalPage, clock: WallClock, others: Sequence[DatabaseWrite] = ()) -> bool:
        count[0] += 1
        return count[0] % 3 == 0 or sound(self, page, clock, others)

    return planted(Journal, "write", write)


def _uncounted_page() -> AbstractContextManager[None]:
    """A page of the journal lacks what its ends add to the totals."""
    sound = Journal.write

    def write(self: Journal, page: JournalPage, clock: WallClock, others: Sequence[DatabaseWrite] = ()) -> bool:
        return sound(self, replace(page, counted=()), clock, others)

    return planted(Journal, "write", write)


def _late_commit() -> AbstractContextManager[None]:
    """Admission sends what a turn decided before it is in the journal, which gets it in the next turn."""
    sound = AdmissionService._write_journal
    told: set[int] = set()

    def write_journal(self: AdmissionService, now_ns: int) -> int | None:
        if id(self) in told:
            told.discard(id(self))
            return sound(self, now_ns)
        told.add(id(self))
        return now_ns

    return planted(AdmissionService, "_write_journal", write_journal)


def _condemned_together() -> AbstractContextManager[None]:
    """All requests of a failed step are ended as errors, not only the one that caused it."""

    def blame(self: Suspects, accused: list[Request], *, alone: bool) -> list[Request]:
        return accused

    return planted(Suspects, "blame", blame)


def _costs_told_once() -> AbstractContextManager[None]:
    """A scheduler does not send its costs again to a new admission."""
    return planted(StreamCosts, "send_again", lambda self: None)


def _costs_counted_again() -> AbstractContextManager[None]:
    """Admission counts costs again whenever they are sent again."""
    sound = UsageCounters.uncounted_costs

    def uncounted_costs(self: UsageCounters, life: int, expenses: Expenses) -> tuple[Spent, ...]:
        sound(self, life, expenses)
        return expenses.entries

    return planted(UsageCounters, "uncounted_costs", uncounted_costs)


def _joined_late() -> AbstractContextManager[None]:
    """Tokens of several steps that are sent together carry the start of the last step."""
    sound = bundle_module._joined

    def one(runs: list[TokenRun]) -> TokenRun:
        return structs.replace(sound(runs), start=runs[-1].start)

    return planted(bundle_module, "_joined", one)


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
    "ignored attempt": _ignored_attempt,
    "skipped commit": _skipped_commit,
    "uncounted page": _uncounted_page,
    "commit after telling": _late_commit,
    "condemned together": _condemned_together,
    "costs told once": _costs_told_once,
    "costs counted again": _costs_counted_again,
    "joined late": _joined_late,
    **planted_adoption_bugs.FAULTS,
}
