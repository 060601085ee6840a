"""Simulates the whole stack in one process: all services, clients, network and clock, driven by one seed.

Faults happen for the first 1.2 simulated seconds. After that nothing goes wrong any more: every accepted request must come to
its one right end, and no process may keep anything of it.
"""

import random
from collections import Counter
from collections.abc import Callable
from typing import Final

import structlog
from fakes.simulated import outcome_check
from fakes.simulated.faults.live_changes import LiveChanges
from fakes.simulated.leftovers import leftovers
from fakes.simulated.machine import services
from fakes.simulated.machine.clock import MILLISECOND, SECOND, EventQueue, SimulatedClock, simulated_time
from fakes.simulated.machine.event_trace import EventTrace
from fakes.simulated.machine.executor import SimulatedExecutor, SimulatedLane
from fakes.simulated.machine.fault_schedule import FaultSchedule
from fakes.simulated.machine.network import Frames, Network
from fakes.simulated.machine.observers import (
    admission_state_of,
    check_invariants_after_events,
    observe_costs,
    observe_failed_steps,
    observe_full_outboxes,
    observe_joined_tokens,
    observe_joins,
    observed_charges,
    observed_notes,
)
from fakes.simulated.machine.process import SimulatedProcess
from fakes.simulated.outcome_check import RunRecord, SchedulerCosts, Violation
from fakes.simulated.scenario.client import SimulatedClient
from fakes.simulated.scenario.client_population import ClientPopulation
from fakes.simulated.scenario.scenario import draw_scenario

from noria.proto.base import Service, Stream
from noria.proto.execution import Failure
from noria.proto.scheduling import Suspected
from noria.proto.wire import Codec
from noria.services.admission.core.state.events import AcceptedLogEntry, EndedLogEntry, RequestLogEntry
from noria.services.admission.core.tenants.token_bucket import TokenBucket
from noria.services.scheduler.service import SchedulerService
from noria.shared.actor.shell import Shell
from noria.shared.telemetry.telemetry import Telemetry

_SETTLE_NS: Final = 60 * SECOND
_HANG_NOTICED_NS: Final = 400 * MILLISECOND
_EVENTS_MAX: Final = 400_000
_SCHEDULER_COUNTERS: Final = (
    "swaps_out",
    "swaps_in",
    "resets",
    "evictions",
    "merged_pages",
    "hit_tokens",
    "discarded_slices",
    "adopted",
    "adopted_tokens",
)


class StackSimulation:
    """One simulated run of the stack from one seed.

    Admission dies only where it keeps a journal to recover from. only: the one fault is that this service dies, and there is
    room for everything. poison_only: the one fault is that some streams kill every executor that computes them; these
    services then die as soon as the scheduler has named its suspects.
    """

    def __init__(
        self,
        seed: int,
        *,
        trace: Callable[[str], None] | None = None,
        only: Service | None = None,
        poison_only: tuple[Service, ...] = (),
    ) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.clock = SimulatedClock()
        self.queue = EventQueue(self.clock)
        self.scenario = draw_scenario(self.random, seed, only, poison_only)
        self.rates = self.scenario.rates
        self._poison_only, self._scheduler_may_die = poison_only, False
        self.network = Network(self.clock, self.queue, self.rates)
        self.trace = EventTrace(self.clock, trace)
        self.database = services.SimulatedDatabase()
        self.processes: dict[Service, SimulatedProcess] = {}
        self._headers = Codec((Suspected,))
        self.record = RunRecord(self.scenario.tenancy)
        self.counts = self.record.counts
        log, counts = self.trace.log, self.counts
        killable = self.scenario.killable if only is None else (only,)
        self.schedule = FaultSchedule(
            self.random, self.queue, self.clock, self.rates, self.processes, killable, log, counts
        )
        self.live_changes = LiveChanges(
            self.random, self.scenario, self.queue, self.processes, self.database, self.schedule, log, counts
        )
        self.population = ClientPopulation(
            self.random,
            self.rates,
            self.scenario.tenancy,
            self.network,
            self.queue,
            self.clock,
            self.schedule,
            log,
            counts,
        )

    def run(self) -> None:
        """Run from the first process to the last check. Raises AssertionError, or any exception that a process raises."""
        structlog.configure(processors=[drop])
        time = simulated_time(self.clock, random.Random(self.seed + 1))
        with time, observed_notes(self._note), observed_charges(self._charged):
            for service in services.PEERS:
                self._start(service)
            self._create_clients()
            self.schedule.start(
                self.live_changes.change_policy, self.live_changes.restart_stream, self.live_changes.fill_disk
            )
            self._until(
                lambda: self.schedule.over and self.population.finished,
                "not all came to an end",
            )
            self._until(lambda: not any(self.state().values()), "something is left")
            self._add_scheduler_counters(self.processes[Service.SCHEDULER])
            self.counts["tried again"] += sum(issued.tries - 1 for issued in self.population.issued_requests)
            self.counts["slow reader"] += sum(client.slow for client in self.clients)
            outcome_check.check_outcome(
                self.clients, self.record, admission_state_of(self.processes[Service.ADMISSION]), self.database
            )
            self._until(lambda: self.database.empty, "something is left in the journal")

    @property
    def clients(self) -> list[SimulatedClient]:
        """All clients."""
        return self.population.clients

    def repeated(self) -> dict[Stream, int]:
        """Return how many positions the present executor has computed again, by stream."""
        shell = self.processes[Service.EXECUTOR].shell
        assert isinstance(shell, SimulatedExecutor)
        again = Counter[Stream]()
        for (stream, _), count in shell.computations.items():
            again[stream] += count - 1
        return dict(+again)

    def state(self) -> dict[str, object]:
        """Return what is left of requests in clients and processes, by name; all empty at the end of a good run."""
        return leftovers(self.clients, self.processes)

    def _until(self, condition: Callable[[], bool], complaint: str) -> None:
        end_ns = self.clock.now_ns + _SETTLE_NS
        for count in range(_EVENTS_MAX):
            if count % 16 == 0 and condition():
                return
            if not self.queue.step() or self.clock.now_ns > end_ns:
                break
            self.counts["events"] += 1
        if not condition():
            raise Violation(f"{complaint}: { {name: what for name, what in self.state().items() if what} }")

    def _start(self, service: Service) -> None:
        again = service in self.processes
        process = self.processes[service] = SimulatedProcess(service, self.network, self.queue, self.clock)
        process.on_death = self._died
        process.on_turn = self._turned
        process.on_send = self._sent
        peers = {peer: services.endpoint(peer) for peer in services.PEERS[service]}
        process.begin(peers, services.endpoint(service), self.scenario.runtime, self._build)
        self._watch(process, again=again)
        self.trace.log_peers(process)
        self.trace.log(service.value, f"starts as {process.mailbox.incarnation:x}")

    def _watch(self, process: SimulatedProcess, *, again: bool) -> None:
        """Check a process's invariants after each event, and record what it does."""
        check_invariants_after_events(process.shell)
        met: set[Service] = set()
        observe_joins(process.shell, lambda peer: self._joined(peer, met, again=again))
        observe_failed_steps(process.shell, self.record.failed.update)
        observe_costs(
            process.shell, self.record.costs.setdefault(process.mailbox.incarnation, SchedulerCosts()).spent.append
        )
        observe_full_outboxes(process.shell, lambda: self.counts.update(["outbox full"]))
        observe_joined_tokens(process.shell, lambda: self.counts.update(["tokens told together"]))

    def _build(self, process: SimulatedProcess) -> Shell:
        match process.service:
            case Service.ADMISSION:
                return services.admission(
                    process, self.queue.after, self.scenario.tenancy.policy, self.database, kept=self.scenario.journal
                )
            case Service.SCHEDULER:
                return services.scheduler(process, self.scenario.settings, self.scenario.tokens_interval_ns)
            case Service.DETOKENIZER:
                return services.detokenizer(process)
            case _:
                return self._executor(process)

    def _executor(self, process: SimulatedProcess) -> SimulatedExecutor:
        lane = SimulatedLane(
            self.scenario.geometry,
            self.queue,
            self.rates,
            process.wake,
            self._step_failed,
            lambda: self._hung(process),
            lambda: self._poisoned(process),
        )
        return SimulatedExecutor(
            process.actor, Telemetry(Service.EXECUTOR, process.mailbox.incarnation, services.NO_TELEMETRY), lane
        )

    def _joined(self, peer: Service, met: set[Service], *, again: bool) -> None:
        if again or peer in met:
            self.record.rejoined = True
            self.counts["joined again"] += 1
        met.add(peer)

    def _died(self, process: SimulatedProcess) -> None:
        self.counts[f"death of {process.service.value}"] += 1
        self.trace.log(process.service.value, "dies")
        self._add_scheduler_counters(process)
        if isinstance(process.shell, SimulatedExecutor):
            process.shell.close()
        if isinstance(process.shell, SchedulerService):
            self.record.costs.setdefault(process.mailbox.incarnation, SchedulerCosts()).unaccounted = len(
                process.shell._reports.costs
            )
            self.counts["tokens held at a death"] += len(process.shell._batches) > 0
        self.queue.after(self.rates.between(5 * MILLISECOND, 120 * MILLISECOND), lambda: self._start(process.service))

    def _poisoned(self, process: SimulatedProcess) -> None:
        self.counts["poison"] += 1
        self._scheduler_may_die = bool(self._poison_only)
        self.trace.log(process.service.value, "is poisoned")
        process.die()

    def _sent(self, process: SimulatedProcess, name: str, frames: Frames) -> None:
        self.trace.sent(process, name, frames)
        if self._scheduler_may_die and self._headers.header(frames).kind == Suspected.__name__:
            self._scheduler_may_die = False
            for service in self._poison_only:
                self.queue.after(self.rates.between(MILLISECOND, 4 * MILLISECOND), self.processes[service].die)

    def _hung(self, process: SimulatedProcess) -> None:
        """Let a step never end; the process is killed after a while, as the supervisor's watchdog does."""
        self.counts["hang"] += 1
        self.trace.log(process.service.value, "hangs")
        self.queue.after(_HANG_NOTICED_NS, process.die)

    def _step_failed(self, streams: list[Stream], failure: Failure) -> None:
        self.counts[f"step failed: {failure.value}"] += 1
        self.trace.log("executor", f"fails a step of {streams}: {failure.value}")

    def _create_clients(self) -> None:
        self.population.create_clients()

    def _turned(self, process: SimulatedProcess) -> None:
        self.counts["turns"] += 1
        if process.service is Service.ADMISSION and not process.paused_until_ns > self.clock.now_ns:
            for request in admission_state_of(self.processes[Service.ADMISSION]).ledger.live.values():
                if request.deadline_ns is not None and request.deadline_ns < self.clock.now_ns:
                    raise Violation(f"{request.key.id} is alive after its deadline")

    def _note(self, note: RequestLogEntry) -> None:
        issued = None
        if isinstance(note, AcceptedLogEntry | EndedLogEntry):
            issued = next((each for each in self.population.issued_requests if each.request.id == note.id), None)
            self.trace.log("ledger", str(note))
        self.record.note(note, self.clock.now_ns, issued)

    def _charged(self, bucket: TokenBucket, tokens: int) -> None:
        self.record.taken[id(bucket)] += tokens

    def _add_scheduler_counters(self, process: SimulatedProcess) -> None:
        if isinstance(process.shell, SchedulerService):
            counters = process.shell._core.state.counters
            self.counts.update({name: getattr(counters, name) for name in _SCHEDULER_COUNTERS})


def drop(logger: object, name: str, event: object) -> object:
    """Drop a log event: the structlog processor of simulations."""
    del logger, name, event
    raise structlog.DropEvent
