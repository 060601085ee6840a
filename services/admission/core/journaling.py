"""What of admission's state goes into the journal, and how a new process takes over what the journal holds."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from noria.proto.base import End, Stream
from noria.proto.scheduling import Accounted, Doubt
from noria.services.admission.core.ledger.request import Request, RequestStage
from noria.services.admission.core.ledger.unsaved_changes import JournalPage
from noria.services.admission.core.ledger.usage_counters import CountedCosts
from noria.services.admission.core.state.admission_state import AdmissionState
from noria.services.admission.core.state.events import RecoveredLogEntry
from noria.services.admission.core.tenants.class_totals import ClassTotals, UsageKey


@dataclass(frozen=True, slots=True)
class JournalContents:
    """What a journal holds, oldest request first; times are on this process's clock.

    levels: what was left in tenants' buckets, and when. asleep_ns: how long nobody was there. doubts: whom the scheduler
    suspected.
    """

    requests: Sequence[Request] = ()
    traffic: Mapping[UsageKey, ClassTotals] = field(default_factory=dict)
    levels: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    asleep_ns: int = 0
    doubts: Mapping[Stream, Doubt] = field(default_factory=dict)


def recover(books: AdmissionState, recovered: JournalContents, now_ns: int) -> list[Request]:
    """Fill empty books, and begin to keep a record. Returns the requests that go on, whose deadlines are to be watched.

    What nobody can continue ends here: when the stack was away for longer than answers are kept, or serves another
    model now.
    """
    books.record.on = True
    books.accounts.recover(recovered.traffic)
    for name, (level, at_ns) in recovered.levels.items():
        books.tenants.refill(books.policy.named(name), level, at_ns, now_ns)
    for request in recovered.requests:
        _readmit(books, request, recovered.asleep_ns, now_ns)
    books.ledger.retained = deque(sorted(books.ledger.retained))
    for request in list(books.ledger.live.values()):
        end, detail = _hindrance(books, request, recovered.asleep_ns)
        if end is not None:
            books.end_all(request, end, now_ns, detail)
    books.suspected(recovered.doubts)
    return list(books.ledger.live.values())


def page(books: AdmissionState, now_ns: int) -> JournalPage | None:
    """What is to be put on record now, with the counts that have changed."""
    accounts = books.accounts
    found = books.record.page(now_ns, live=bool(books.ledger.live), counted=bool(accounts.unrecorded))
    if found is None:
        return None
    levels = books.tenants.levels(now_ns)
    if not found.fold:
        return replace(found, counted=tuple(accounts.unrecorded.items()), levels=levels)
    changed = [each for each in accounts.traffic if each in accounts.moved or each in accounts.unrecorded]
    return replace(found, traffic=tuple((each, accounts.traffic[each]) for each in changed), levels=levels)


def written(books: AdmissionState, taken: JournalPage) -> None:
    """A page is on record."""
    books.record.written(taken)
    books.accounts.written(fold=taken.fold)
    books.tenants.recorded()


def accounted(books: AdmissionState, told: CountedCosts) -> None:
    """The scheduler's costs are written down up to there: it hears of it when it has told any since it last did."""
    accounts = books.accounts
    if accounts.owes_answer and accounts.told == told and books.scheduler.joined:
        accounts.owes_answer = False
        books.scheduler.accounted = Accounted(*told)


def _readmit(books: AdmissionState, request: Request, asleep_ns: int, now_ns: int) -> None:
    books.ledger.readmit(request)
    books.record.recovered(request)
    books.notes.append(RecoveredLogEntry(request.key.id, request.number, request.unfinished))
    tenant = books.tenants.get(books.policy.named(request.key.tenant), now_ns)
    tenant.streams += request.unfinished
    if request.stage is RequestStage.ENDED:
        # The time away does not count: its client could not come for it.
        ended_ns = max(choice.ended_ns for choice in request.choices)
        kept_ns = max(now_ns - asleep_ns - ended_ns, 0)
        books.ledger.retain(request, now_ns + max(books.rules.retention_ns - kept_ns, 0))
        return
    if all(choice.first_token_ns is None for choice in request.choices):
        books.queues.add(request)
    # Whoever reads it has to notice first, and to find the way back.
    patience_ns = max(request.grace_ns, books.rules.client_timeout_ns) - request.grace_ns
    books.left(request, now_ns + patience_ns)


def _hindrance(books: AdmissionState, request: Request, asleep_ns: int) -> tuple[End | None, str]:
    if asleep_ns > books.rules.retention_ns:
        return End.CANCELLED, f"the server was away for {asleep_ns // 1_000_000_000} s"
    if request.model not in books.rules.models or max(request.prompt) >= books.rules.vocabulary:
        return End.ERROR, "the server was restarted with another model"
    return None, ""
