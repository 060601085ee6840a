"""The scheduler core: events in, replies and step plans out.

Decides what each event means for the requests. It has no clock, randomness or log: the same events and planning times
give the same plans. An illegal event raises IllegalEventError and changes nothing.
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
from noria.services.scheduler.core.policy.fair_policy import FairPolicy
from noria.services.scheduler.core.policy.policies import policy_named
from noria.services.scheduler.core.state.scheduler_state import SchedulerState
from noria.services.scheduler.core.step.step_planner import StepPlanner


class Scheduler:
    """One replica's scheduler. `board` is its whole state, for inspection.

    Raises ValueError for an unknown policy.
    """

    def __init__(self, settings: CoreSettings) -> None:
        self.board = SchedulerState(settings, policy_named(settings.policy, settings.rules))
        self._credit = CapacityReport(self.board)
        self._planner = StepPlanner(self.board, self._credit.times)
        self._intake = StreamHandler(self.board)
        self._adoption = CacheAdoption(self.board, self._intake)
        self._results = ExecutorHandler(self.board, self._planner, self._intake, self._credit, self._adoption)

    def apply(self, event: SchedulerEvent) -> list[SchedulerReply]:
        """Take one event; return what must be told, including what earlier plans had to tell.

        Raises IllegalEventError, changing nothing, for what nobody who keeps to the protocol sends.
        """
        now_ns, body = event
        self.board.now_ns = now_ns
        match body:
            case Progress():
                self._intake.progress(body)
            case Submit():
                self._credit.submitted += len(body.submissions)
                self._intake.submit(now_ns, body)
                self._credit.received(self._intake.taken)
            case Withdraw():
                self._intake.withdraw(now_ns, body)
            case Ended():
                self._intake.ended(now_ns, body)
            case Resend():
                self._intake.resend(body)
            case StepDone() | StepFailed() | Geometry() | Inventory():
                self._results.apply(now_ns, body)
            case ExecutorLost() | ExecutorSilent() | ExecutorReturned():
                self._results.executor_lost(now_ns, body)
            case AdmissionJoined():
                self._credit.submitted = 0
                self._intake.admission_joined()
            case PolicyChanged():
                self._change(body)
            case TimePassed():
                pass
            case _:
                assert_never(body)
        self._adoption.settle(now_ns)
        self._intake.expire(now_ns)
        replies = self.board.news
        self.board.news = []
        return replies

    def _change(self, body: PolicyChanged) -> None:
        """Nobody is lost: whoever waits or runs goes on under the new rules."""
        policy = self.board.policy
        if isinstance(policy, FairPolicy) and body.policy == policy.name:
            policy.change(body.rules)
        else:
            policy = policy_named(body.policy, body.rules)
        self.board.change(policy)
        self._planner.change_policy()

    def plan(self, now_ns: int) -> StepPlan | None:
        """Plan the next step, or None when none can or need be sent now; call again until None."""
        self.board.now_ns = now_ns
        self._adoption.settle(now_ns)
        self._intake.expire(now_ns)
        if self._adoption.due_ns is not None:
            return None
        plan = self._planner.plan(now_ns)
        if plan is not None:
            filled = [self.board.requests[each.stream] for each in plan.fill]
            self._credit.planned(now_ns, [each for each in filled if each.started_ns == now_ns])
        return plan

    @property
    def due_ns(self) -> int | None:
        """When a `TimePassed` is wanted, and the next plan, if nothing else happens before."""
        times = (self.board.deadlines.next_ns, self._planner.due_ns, self._adoption.due_ns)
        return min((each for each in times if each is not None), default=None)

    def cramped(self) -> list[tuple[str, int | None]]:
        """Isolated classes that reserve less of the cache than one of their requests may need, and how much that is."""
        policy, cache = self.board.policy, self.board.cache
        if not isinstance(policy, FairPolicy) or cache is None:
            return []
        classes = policy.rules.classes
        return [(each.name, each.request_tokens) for each in classes if each.cramped(cache.pages, cache.page_tokens)]

    def traceparent(self, plan: StepPlan) -> str:
        """In whose trace the step planned last is shown: of the first stream it admits, else of its oldest decode.

        One step computes for many streams and a header names one trace: so each request that is admitted alone shows
        its first step, and the request at the front all of its steps.
        """
        if plan.fill:
            return self.board.requests[plan.fill[0].stream].submission.traceparent
        entries = self.board.lane.steps[-1].entries
        return entries[0].request.submission.traceparent if entries else ""

    def capacity(self) -> Capacity:
        """What admission may count on."""
        return self._credit.capacity()

    def suspected(self) -> Suspected | None:
        """Whom this scheduler suspects; None before admission has named everybody whom an earlier one did."""
        return self.board.suspects.standing if self._intake.recited else None

    def standing(self) -> Resend:
        """What to tell a detokenizer that joins: where each stream stands, so that it can see what it lacks."""
        requests = self.board.requests.values()
        return Resend(tuple(Gap(each.stream, len(each.output)) for each in requests if each.output or each.end))

    def check(self) -> None:
        """State the invariants; raises AssertionError when one does not hold."""
        check(self.board)
