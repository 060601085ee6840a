"""The scheduler's process: messages become events of the core, its replies become one message for each peer and turn.

It decides nothing.
"""

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, assert_never

import msgspec

from noria.proto.base import Ended, Header, Service, Stream
from noria.proto.execution import Geometry, Inventory, StepDone, StepFailed
from noria.proto.lifecycle import State
from noria.proto.output import Gap, Progress, Resend, TokenRun, Tokens
from noria.proto.scheduling import Accounted, Reclaimed, Spent, Submit, Withdraw
from noria.services.scheduler.admission_reports import AdmissionReports
from noria.services.scheduler.core.interface.events import (
    AdmissionJoined,
    EventBody,
    ExecutorLost,
    ExecutorReturned,
    ExecutorSilent,
    PolicyChanged,
    SchedulerEvent,
    StreamPhaseChanged,
    TimePassed,
)
from noria.services.scheduler.core.interface.settings import CoreSettings
from noria.services.scheduler.core.scheduler import Scheduler
from noria.services.scheduler.core.state.scheduler_view import SchedulerView
from noria.services.scheduler.observe.event_log import EventLog
from noria.services.scheduler.observe.live_view import LiveView
from noria.services.scheduler.observe.phase_spans import PhaseSpans
from noria.services.scheduler.observe.request_history import RequestHistory
from noria.services.scheduler.observe.scheduler_metrics import SchedulerMetrics
from noria.services.scheduler.token_batches import TokenBatches
from noria.shared.actor.actor import Actor
from noria.shared.telemetry.log import logger
from noria.shared.telemetry.telemetry import Telemetry

_RETRY_NS: Final = 50_000_000
_MAIL: Final = (Submit, Withdraw, Ended, Resend, Progress, Geometry, StepDone, StepFailed, Inventory)


class SchedulerService:
    """Runs a core on an actor.

    event_log: begins the event log, None for none. tokens_interval_ns: for how long tokens of short steps are sent together, see
    `TokenBatches`.
    """

    def __init__(
        self,
        actor: Actor,
        telemetry: Telemetry,
        settings: CoreSettings,
        event_log: Callable[[SchedulerView], EventLog] | None = None,
        tokens_interval_ns: int = 0,
    ) -> None:
        self._actor = actor
        self._core = Scheduler(settings)
        view = self._view = self._core.view
        self._event_log = event_log(view) if event_log is not None else None
        self._history = RequestHistory(view)
        actor.on_question(lambda about: self._history.answer(about, time.monotonic_ns()))
        self._live = LiveView(view, self._history)
        actor.on_topic("live", lambda about: self._live.answer(about, time.monotonic_ns()))
        actor.on_topic("story", lambda about: self._history.answer_phases(about, time.monotonic_ns()))
        self._spans = PhaseSpans(telemetry, view)
        self._metrics = SchedulerMetrics(view, self._core.capacity, telemetry.settings.tenants_max, time.monotonic_ns)
        telemetry.add(self._metrics)
        self._log = logger(Service.SCHEDULER.value)
        self._state = State.READY
        self._batches = TokenBatches(view, tokens_interval_ns)
        self._sending: Sequence[TokenRun] = ()
        self._owed: dict[Stream, int] = {}
        life = actor.mailbox.incarnation
        self._reports = AdmissionReports(life, lambda body: actor.send(self, Service.ADMISSION, body))
        self._applied = False
        self._adopted = 0
        self._executor = 0

    def receive(self, sender: Service, header: Header, body: msgspec.Struct) -> None:
        """Apply one message; the mailbox lets in only the kinds listed for this edge."""
        del sender, header
        if isinstance(body, Accounted):
            self._reports.mark_recorded(body)
            return
        assert isinstance(body, _MAIL), f"unexpected {type(body).__name__}"
        if isinstance(body, Geometry):
            self._log.info("executor ready", model=body.model, blocks=body.num_blocks, page_size=body.page_size)
        elif isinstance(body, StepFailed):
            self._log.warning("step failed", number=body.number, failure=body.failure.value, detail=body.detail)
        self._apply(body)
        if isinstance(body, StepDone):
            self._metrics.step(body)
        elif isinstance(body, Geometry):
            self._warn_of_cramped()
        adopted = self._view.adopted
        if adopted != self._adopted:
            self._log.info("cache taken over", streams=adopted - self._adopted)
            self._adopted = adopted

    def joined(self, peer: Service) -> None:
        """Greet a peer that begins a life or was missed, by what it is.

        Admission is sent the capacity; an executor sends its geometry; the detokenizer is sent where each stream stands.
        """
        match peer:
            case Service.ADMISSION:
                self._reports.admission_joined()
                self._apply(AdmissionJoined())
            case Service.EXECUTOR:
                # The same life, when mail was lost, or it was silent for long: it has not died of what it computed.
                life = self._actor.mailbox.links[peer].incarnation
                returned, self._executor = life == self._executor, life
                self._apply(ExecutorReturned() if returned else ExecutorLost())
            case Service.DETOKENIZER:
                # What was said before it joined was not kept, nor does it know of it: it asks for what it lacks.
                self._owed.clear()
                self._batches.clear()
                self._apply(self._core.stream_positions())
            case Service.GATEWAY | Service.SCHEDULER | Service.SUPERVISOR:
                pass
            case _:
                assert_never(peer)

    def lost(self, peer: Service) -> None:
        """Go on without a silent peer: without an executor nothing is planned, for others messages are kept."""
        if peer is Service.EXECUTOR:
            self._apply(ExecutorSilent())

    def congested(self, peer: Service) -> None:
        """Send later what a full outbox did not take: tokens are asked of the core again, capacity goes with the next step.

        Two plans always fit into the executor's outbox.
        """
        assert peer is not Service.EXECUTOR, "a plan was not taken"
        self._log.warning("outbox full", peer=peer.value)
        if peer is Service.DETOKENIZER:
            self._owe(self._sending)

    def advance(self, now_ns: int) -> int | None:
        """Send the plans that may be in flight, then tokens and reports that are due; returns when to be called next."""
        due_ns = self._core.due_ns
        if due_ns is not None and due_ns <= now_ns:
            self._apply(TimePassed())
        if self._event_log is not None:
            self._event_log.record_planning(now_ns)
        while (plan := self._core.plan(now_ns)) is not None:
            self._actor.send(self, Service.EXECUTOR, plan, self._core.traceparent(plan))
            self._spans.step_sent()
            self._live.step_sent(plan, now_ns)
            self._applied = True
        if self._applied or self._owed or self._batches.due(now_ns) or self._reports.is_due(now_ns):
            self._applied = False
            self._send_tokens(now_ns)
            self._reports.advance(now_ns, self._core.capacity(), self._core.suspected())
        retry_ns = now_ns + _RETRY_NS if self._owed else None
        return _earliest(retry_ns, self._batches.due_ns, self._core.due_ns, self._reports.due_ns)

    def change_policy(self, settings: CoreSettings) -> None:
        """Share as these settings say from now on; all else in them takes a restart."""
        self._apply(PolicyChanged(settings.policy, settings.rules))
        self._warn_of_cramped()

    def _warn_of_cramped(self) -> None:
        for name, tokens in self._core.cramped():
            self._log.warning("an isolated class may wait for cache: one request can need more than it reserves",
                              traffic_class=name, request_tokens=tokens)  # fmt: skip

    def state(self) -> State:
        """READY from the start, or DRAINING: without an executor requests wait, and `Capacity.ready` says so."""
        return self._state

    def progress(self) -> tuple[int, bool]:
        """How many steps were done, and whether anything waits or runs."""
        return self._view.steps, self._view.busy

    def snapshot(self) -> dict[str, Any]:
        """What `/debug/state` shows: counts that are zero when no request is alive, and counters since the start."""
        view, counts = self._view, self._view.counts()
        return {
            "waiting": counts.waiting,
            "running": counts.running,
            "finished": counts.finished,
            "blocks_used": counts.blocks_used,
            "slots_used": counts.slots_used,
            "in_flight": counts.steps_in_flight,
            "tokens_held": len(self._batches),
            "unaccounted": len(self._reports.costs),
            "costs_lost": self._reports.costs.lost,
            "epoch": counts.epoch,
            "capacity": msgspec.to_builtins(self._core.capacity()),
            "blocks": [dataclasses.asdict(each) for each in view.blocks()],
            "counters": dataclasses.asdict(view.counters()),
            "policy": view.policy,
            "shares": [each._asdict() for each in view.standings()],
        }

    def drain(self, timeout_ms: int) -> None:
        """Say that this process drains; everything that was accepted goes on."""
        del timeout_ms
        self._state = State.DRAINING

    def close(self) -> None:
        """End open spans and write the rest of the event log."""
        self._spans.close()
        if self._event_log is not None:
            self._event_log.close()

    def _apply(self, body: EventBody) -> None:
        now_ns = time.monotonic_ns()
        self._applied = True
        if self._event_log is not None:
            self._event_log.record(now_ns, body)
        for reply in self._core.apply(SchedulerEvent(now_ns, body)):
            match reply:
                case TokenRun():
                    self._batches.add(reply, asked=not isinstance(body, StepDone))
                case Reclaimed():
                    self._reports.add_reclaimed(reply)
                case Spent():
                    self._reports.add_cost(reply)
                case StreamPhaseChanged():
                    self._batches.phase_changed(reply)
                    self._spans.phase_changed(reply, now_ns)
                    self._history.phase_changed(reply)
                    self._live.phase_changed(reply)
                case _:
                    assert_never(reply)

    def _send_tokens(self, now_ns: int) -> None:
        """Send all tokens that are due in one message. A detokenizer that missed some asks for them."""
        if self._owed:
            # An answer to the detokenizer may begin before what the full outbox did not take.
            self._owe(self._batches.drop(self._owed))
            gaps = tuple(itertools.starmap(Gap, self._owed.items()))
            self._owed.clear()
            self._apply(Resend(gaps))
        if self._batches.due(now_ns):
            self._sending = self._batches.take(now_ns)
            self._actor.send(self, Service.DETOKENIZER, Tokens(tuple(self._sending)))
            self._sending = ()

    def _owe(self, runs: Iterable[TokenRun]) -> None:
        """Note streams whose tokens, from the earliest position of these runs on, must be sent later."""
        for run in runs:
            self._owed[run.stream] = min(run.start, self._owed.get(run.stream, run.start))


def _earliest(*times_ns: int | None) -> int | None:
    return min((each for each in times_ns if each is not None), default=None)
