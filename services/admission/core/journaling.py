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
    """The state recovered from a journal, oldest request first; times are on this process's clock.

    levels: what was left in tenants' buckets, and when. asleep_ns: how long no admission ran. doubts: the streams that the scheduler
    suspected.
    """

    requests: Sequence[Request] = ()
    class_totals: Mapping[UsageKey, ClassTotals] = field(default_factory=dict)
    levels: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    asleep_ns: int = 0
    doubts: Mapping[Stream, Doubt] = field(default_factory=dict)


def recover(state: AdmissionState, recovered: JournalContents, now_ns: int) -> list[Request]:
    """Fill an empty state from a journal, and begin to write one. Returns the requests that go on, whose deadlines are to be watched.

    What nobody can continue ends here: when the stack was away for longer than answers are kept, or serves another
    model now.
    """
    state.unsaved.on = True
    state.usage_counters.recover(recovered.class_totals)
    for name, (level, at_ns) in recovered.levels.items():
        state.tenants.refill(state.policy.named(name), level, at_ns, now_ns)
    for request in recovered.requests:
        _readmit(state, request, recovered.asleep_ns, now_ns)
    state.ledger.retained = deque(sorted(state.ledger.retained))
    for request in list(state.ledger.live.values()):
        end, detail = _why_it_cannot_continue(state, request, recovered.asleep_ns)
        if end is not None:
            state.end_all(request, end, now_ns, detail)
    state.suspected(recovered.doubts)
    return list(state.ledger.live.values())


def next_page(state: AdmissionState, now_ns: int) -> JournalPage | None:
    """The next page to write, with the counters that have changed; None if nothing has to be written."""
    usage_counters = state.usage_counters
    found = state.unsaved.next_page(now_ns, live=bool(state.ledger.live), counted=bool(usage_counters.unrecorded))
    if found is None:
        return None
    levels = state.tenants.levels(now_ns)
    if not found.fold:
        return replace(found, counted=tuple(usage_counters.unrecorded.items()), levels=levels)
    changed = [
        each
        for each in usage_counters.class_totals
        if each in usage_counters.moved or each in usage_counters.unrecorded
    ]
    return replace(
        found, class_totals=tuple((each, usage_counters.class_totals[each]) for each in changed), levels=levels
    )


def page_written(state: AdmissionState, taken: JournalPage) -> None:
    """Mark everything in a page as written."""
    state.unsaved.page_written(taken)
    state.usage_counters.written(fold=taken.fold)
    state.tenants.recorded()


def confirm_costs(state: AdmissionState, costs: CountedCosts) -> None:
    """Queue an `Accounted` for the scheduler when all costs that it has sent are written, and it has not had one since."""
    usage_counters = state.usage_counters
    if usage_counters.owes_answer and usage_counters.costs == costs and state.scheduler.joined:
        usage_counters.owes_answer = False
        state.scheduler.accounted = Accounted(*costs)


def _readmit(state: AdmissionState, request: Request, asleep_ns: int, now_ns: int) -> None:
    state.ledger.readmit(request)
    state.unsaved.recovered(request)
    state.log_entries.append(RecoveredLogEntry(request.key.id, request.number, request.unfinished))
    tenant = state.tenants.get(state.policy.named(request.key.tenant), now_ns)
    tenant.streams += request.unfinished
    if request.stage is RequestStage.ENDED:
        # The time away does not count: its client could not come for it.
        ended_ns = max(choice.ended_ns for choice in request.choices)
        kept_ns = max(now_ns - asleep_ns - ended_ns, 0)
        state.ledger.retain(request, now_ns + max(state.limits.retention_ns - kept_ns, 0))
        return
    if all(choice.first_token_ns is None for choice in request.choices):
        state.waiting.add(request)
    # Whoever reads it has to notice first, and to find the way back.
    extra_grace_ns = max(request.grace_ns, state.limits.client_timeout_ns) - request.grace_ns
    state.client_gone(request, now_ns + extra_grace_ns)


def _why_it_cannot_continue(state: AdmissionState, request: Request, asleep_ns: int) -> tuple[End | None, str]:
    if asleep_ns > state.limits.retention_ns:
        return End.CANCELLED, f"the server was away for {asleep_ns // 1_000_000_000} s"
    if request.model not in state.limits.models or max(request.prompt) >= state.limits.vocabulary:
        return End.ERROR, "the server was restarted with another model"
    return None, ""
