"""The scheduler's core: events in, replies and step plans out.

It has no clock, randomness or log: the same events and planning times give the same plans. An illegal event raises
IllegalEventError and changes nothing.
"""

from typing import assert_never

from noria.proto.base import Ended
from noria.proto.execution import Geometry, Inventory, StepDone, StepFailed, StepPlan
from noria.proto.output import Gap, Progress, Resend
from noria.proto.scheduling import Capacity, Submit, Suspected, Withdraw
from noria.services.scheduler.core.handlers.cache_adoption import CacheAdoption
from noria.services.scheduler.core.handlers.capacity_report import CapacityReport
from noria.services.scheduler.core.handlers.executor_handler import ExecutorHandler
from noria.services.scheduler.core.handlers.stream_handler import StreamHandler
from noria.services.scheduler.core.interface.events import (
    AdmissionJoined,
    ExecutorLost,
    ExecutorReturned,
    ExecutorSilent,
    PolicyChanged,
    SchedulerEvent,
    SchedulerReply,
    TimePassed,
)
from noria.services.scheduler.core.interface.settings import CoreSettings
from noria.services.scheduler.core.invariants import check
from noria.services.scheduler.core.policy.policies import policy_named
from noria.services.scheduler.core.state.scheduler_state import SchedulerState
from noria.services.scheduler.core.state.scheduler_view import SchedulerView
from noria.services.scheduler.core.step.request_lifecycle import RequestLifecycle
from noria.services.scheduler.core.step.step_planner import StepPlanner


class Scheduler:
    """One replica's scheduler. `view` is what observers see of it, `state` all that it owns, for tests.

    Raises ValueError for an unknown policy.
    """

    def __init__(self, settings: CoreSettings) -> None:
        self._policy = policy_named(settings.policy, settings.rules)
        self.state = SchedulerState(settings, self._policy)
        self.view = SchedulerView(self.state)
        self._lifecycle = RequestLifecycle(self.state)
        self._capacity = CapacityReport(self.state)
        times = self._capacity.times
        self._planner = StepPlanner(self.state, times, self._policy.composer(self.state, times))
        self._streams = StreamHandler(self.state)
        self._adoption = CacheAdoption(self.state, self._streams)
        self._executor = ExecutorHandler(self.state, self._planner, self._streams, self._capacity, self._adoption)

    def apply(self, event: SchedulerEvent) -> list[SchedulerReply]:
        """Handle one event; returns the replies to send, those pending from earlier plans included.

        Raises IllegalEventError, changing nothing, for what no peer that keeps to the protocol sends.
        """
        now_ns, body = event
        match body:
            case Progress():
                self._streams.progress(body)
            case Submit():
                self._capacity.submitted += len(body.submissions)
                self._streams.submit(now_ns, body)
                self._capacity.received(self._streams.submitted_now)
            case Withdraw():
                self._streams.withdraw(now_ns, body)
            case Ended():
                self._streams.ended(now_ns, body)
            case Resend():
                self._streams.resend(body)
            case StepDone() | StepFailed() | Geometry() | Inventory():
                self._executor.apply(now_ns, body)
            case ExecutorLost() | ExecutorSilent() | ExecutorReturned():
                self._executor.executor_lost(now_ns, body)
            case AdmissionJoined():
                self._capacity.submitted = 0
                self._streams.admission_joined()
            case PolicyChanged():
                self._change(body)
            case TimePassed():
                pass
            case _:
                assert_never(body)
        self._adoption.settle(now_ns)
        self._streams.expire(now_ns)
        return self.state.take_replies()

    def _change(self, body: PolicyChanged) -> None:
        """Go on by another policy or other rules; whoever waits or runs is kept."""
        if body.policy == self._policy.name:
            self._policy.change(body.rules)
        else:
            self._policy = policy_named(body.policy, body.rules)
        self._lifecycle.change_policy(self._policy)
        self._planner.change_composer(self._policy.composer(self.state, self._capacity.times))

    def plan(self, now_ns: int) -> StepPlan | None:
        """Plan the next step, or None when none can or need be sent now; call again until None."""
        self._adoption.settle(now_ns)
        self._streams.expire(now_ns)
        if self._adoption.due_ns is not None:
            return None
        plan = self._planner.plan(now_ns)
        if plan is not None:
            filled = [self.state.requests[each.stream] for each in plan.fill]
            self._capacity.planned(now_ns, [each for each in filled if each.life.started_ns == now_ns])
        return plan

    @property
    def due_ns(self) -> int | None:
        """When a `TimePassed` is wanted, and the next plan, if nothing else happens before."""
        times = (self.state.deadlines.next_ns, self._planner.due_ns, self._adoption.due_ns)
        return min((each for each in times if each is not None), default=None)

    def cramped(self) -> list[tuple[str, int | None]]:
        """Isolated classes that reserve less of the cache than one of their requests may need, and how much that is."""
        cache = self.state.cache
        return self._policy.cramped(cache.pages, cache.page_tokens) if cache is not None else []

    def traceparent(self, plan: StepPlan) -> str:
        """The trace in which the step planned last is shown: of the first stream it admits, else of its oldest decode.

        One step computes for many streams and a header names one trace: so each request that is admitted alone shows
        its first step, and the request at the front all of its steps.
        """
        if plan.fill:
            return self.state.requests[plan.fill[0].stream].asked.submission.traceparent
        entries = self.state.in_flight.steps[-1].entries
        return entries[0].request.asked.submission.traceparent if entries else ""

    def capacity(self) -> Capacity:
        """What admission may count on."""
        return self._capacity.capacity()

    def suspected(self) -> Suspected | None:
        """The requests that this scheduler suspects; None before admission has named everybody whom an earlier one did."""
        return self.state.suspects.suspected_now if self._streams.names_complete else None

    def stream_positions(self) -> Resend:
        """Where each stream stands, for a detokenizer that joins: it sees from it what it lacks."""
        requests = self.state.requests.values()
        return Resend(
            tuple(
                Gap(each.stream, len(each.progress.output))
                for each in requests
                if each.progress.output or each.life.end
            )
        )

    def check(self) -> None:
        """Raises AssertionError when an invariant does not hold."""
        check(self.state)
