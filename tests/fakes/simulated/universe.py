"""All cores and shells, clients, network and clock in one process, driven by one seed.

Faults happen until everything has been asked for and some time after; then all is still, and everything that was
accepted must come to its one right end, and nothing may be left anywhere.
"""

import random
from collections import Counter
from collections.abc import Callable
from typing import Final

import structlog
from fakes.simulated import stack, verdict
from fakes.simulated.audience import Audience
from fakes.simulated.clock import MILLISECOND, SECOND, Agenda, Clock, simulated_time
from fakes.simulated.fate import Fate
from fakes.simulated.lane import SimulatedExecutor, SimulatedLane
from fakes.simulated.life import Life
from fakes.simulated.network import Frames, Network
from fakes.simulated.people import Person
from fakes.simulated.remains import remains
from fakes.simulated.scene import draw_scene
from fakes.simulated.taps import (
    admission_state_of,
    charges_told,
    check_every_event,
    note_bundles,
    note_congestion,
    note_costs,
    note_failures,
    note_joins,
    notes_told,
)
from fakes.simulated.trace import Trace
from fakes.simulated.upheaval import Upheaval
from fakes.simulated.verdict import Costs, Record, Violation

from noria.proto.base import Service, Stream
from noria.proto.execution import Failure
from noria.proto.scheduling import Suspected
from noria.proto.wire import Codec
from noria.services.admission.core.state.events import AcceptedLogEntry, EndedLogEntry, RequestLogEntry
from noria.services.admission.core.tenants.token_bucket import TokenBucket
from noria.services.scheduler.service import SchedulerService
from noria.shared.actor.shell import Shell
from noria.shared.telemetry.telemetry import Telemetry

_PATIENCE_NS: Final = 60 * SECOND
_HANG_NOTICED_NS: Final = 400 * MILLISECOND
_EVENTS_MAX: Final = 400_000
_COUNTED: Final = (
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


class Universe:
    """One run.

    Admission is mortal where it keeps a journal to come back from. only: nothing goes wrong but that this service dies, and
    there is room for everything. plague: nothing goes wrong but that some streams kill every executor that computes them,
    and these services then die as soon as the scheduler has said whom it suspects.
    """

    def __init__(
        self,
        seed: int,
        *,
        trace: Callable[[str], None] | None = None,
        only: Service | None = None,
        plague: tuple[Service, ...] = (),
    ) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.clock = Clock()
        self.agenda = Agenda(self.clock)
        self.scene = draw_scene(self.random, seed, only, plague)
        self.chance = self.scene.chance
        self._plague, self._plagued = plague, False
        self.network = Network(self.clock, self.agenda, self.chance)
        self.trace = Trace(self.clock, trace)
        self.database = stack.SimulatedDatabase()
        self.lives: dict[Service, Life] = {}
        self._headers = Codec((Suspected,))
        self.record = Record(self.scene.traffic)
        self.counts = self.record.counts
        tell, counts = self.trace.tell, self.counts
        mortal = self.scene.mortal if only is None else (only,)
        self.fate = Fate(self.random, self.agenda, self.clock, self.chance, self.lives, mortal, tell, counts)
        self.upheaval = Upheaval(
            self.random, self.scene, self.agenda, self.lives, self.database, self.fate, tell, counts
        )
        self.audience = Audience(
            self.random, self.chance, self.scene.traffic, self.network, self.agenda, self.clock, self.fate, tell, counts
        )

    def run(self) -> None:
        """From the first process to the last check. Raises AssertionError, or whatever a process dies of by itself."""
        structlog.configure(processors=[drop])
        time = simulated_time(self.clock, random.Random(self.seed + 1))
        with time, notes_told(self._note), charges_told(self._charged):
            for service in stack.PEERS:
                self._start(service)
            self._invite()
            self.fate.begin(self.upheaval.change_policy, self.upheaval.begin_again, self.upheaval.fill_disk)
            self._until(
                lambda: self.fate.still and all(wish.over for wish in self.audience.wishes), "not all came to an end"
            )
            self._until(lambda: not any(self.state().values()), "something is left")
            self._count_board(self.lives[Service.SCHEDULER])
            self.counts["tried again"] += sum(wish.tries - 1 for wish in self.audience.wishes)
            self.counts["slow reader"] += sum(person.slow for person in self.people)
            verdict.judge(self.people, self.record, admission_state_of(self.lives[Service.ADMISSION]), self.database)
            self._until(lambda: self.database.empty, "something is left in the journal")

    @property
    def people(self) -> list[Person]:
        """All clients."""
        return self.audience.people

    def repeated(self) -> dict[Stream, int]:
        """Positions that the present executor has computed more than once, by stream."""
        shell = self.lives[Service.EXECUTOR].shell
        assert isinstance(shell, SimulatedExecutor)
        again = Counter[Stream]()
        for (stream, _), count in shell.computations.items():
            again[stream] += count - 1
        return dict(+again)

    def state(self) -> dict[str, object]:
        """Everything that must be nothing in the end."""
        return remains(self.people, self.lives)

    def _until(self, condition: Callable[[], bool], complaint: str) -> None:
        end_ns = self.clock.now_ns + _PATIENCE_NS
        for count in range(_EVENTS_MAX):
            if count % 16 == 0 and condition():
                return
            if not self.agenda.step() or self.clock.now_ns > end_ns:
                break
            self.counts["events"] += 1
        if not condition():
            raise Violation(f"{complaint}: { {name: what for name, what in self.state().items() if what} }")

    def _start(self, service: Service) -> None:
        again = service in self.lives
        life = self.lives[service] = Life(service, self.network, self.agenda, self.clock)
        life.on_death = self._died
        life.on_turn = self._turned
        life.on_send = self._sent
        peers = {peer: stack.endpoint(peer) for peer in stack.PEERS[service]}
        life.begin(peers, stack.endpoint(service), self.scene.runtime, self._build)
        self._watch(life, again=again)
        self.trace.overhear(life)
        self.trace.tell(service.value, f"starts as {life.mailbox.incarnation:x}")

    def _watch(self, life: Life, *, again: bool) -> None:
        """Hold a process to its invariants, and note what it tells."""
        check_every_event(life.shell)
        met: set[Service] = set()
        note_joins(life.shell, lambda peer: self._joined(peer, met, again=again))
        note_failures(life.shell, self.record.failed.update)
        note_costs(life.shell, self.record.costs.setdefault(life.mailbox.incarnation, Costs()).spent.append)
        note_congestion(life.shell, lambda: self.counts.update(["outbox full"]))
        note_bundles(life.shell, lambda: self.counts.update(["tokens told together"]))

    def _build(self, life: Life) -> Shell:
        match life.service:
            case Service.ADMISSION:
                return stack.admission(
                    life, self.agenda.after, self.scene.traffic.policy, self.database, kept=self.scene.journal
                )
            case Service.SCHEDULER:
                return stack.scheduler(life, self.scene.settings, self.scene.tokens_interval_ns)
            case Service.DETOKENIZER:
                return stack.detokenizer(life)
            case _:
                return self._executor(life)

    def _executor(self, life: Life) -> SimulatedExecutor:
        lane = SimulatedLane(
            self.scene.geometry,
            self.agenda,
            self.chance,
            life.wake,
            self._step_failed,
            lambda: self._hung(life),
            lambda: self._poisoned(life),
        )
        return SimulatedExecutor(
            life.actor, Telemetry(Service.EXECUTOR, life.mailbox.incarnation, stack.NO_TELEMETRY), lane
        )

    def _joined(self, peer: Service, met: set[Service], *, again: bool) -> None:
        if again or peer in met:
            self.record.rejoined = True
            self.counts["joined again"] += 1
        met.add(peer)

    def _died(self, life: Life) -> None:
        self.counts[f"death of {life.service.value}"] += 1
        self.trace.tell(life.service.value, "dies")
        self._count_board(life)
        if isinstance(life.shell, SimulatedExecutor):
            life.shell.close()
        if isinstance(life.shell, SchedulerService):
            self.record.costs.setdefault(life.mailbox.incarnation, Costs()).unaccounted = len(life.shell._reports.costs)
            self.counts["tokens held at a death"] += len(life.shell._bundle) > 0
        self.agenda.after(self.chance.between(5 * MILLISECOND, 120 * MILLISECOND), lambda: self._start(life.service))

    def _poisoned(self, life: Life) -> None:
        self.counts["poison"] += 1
        self._plagued = bool(self._plague)
        self.trace.tell(life.service.value, "is poisoned")
        life.die()

    def _sent(self, life: Life, name: str, frames: Frames) -> None:
        self.trace.sent(life, name, frames)
        if self._plagued and self._headers.header(frames).kind == Suspected.__name__:
            self._plagued = False
            for service in self._plague:
                self.agenda.after(self.chance.between(MILLISECOND, 4 * MILLISECOND), self.lives[service].die)

    def _hung(self, life: Life) -> None:
        """A step never ends; whoever watches progress kills the process after a while."""
        self.counts["hang"] += 1
        self.trace.tell(life.service.value, "hangs")
        self.agenda.after(_HANG_NOTICED_NS, life.die)

    def _step_failed(self, streams: list[Stream], failure: Failure) -> None:
        self.counts[f"step failed: {failure.value}"] += 1
        self.trace.tell("executor", f"fails a step of {streams}: {failure.value}")

    def _invite(self) -> None:
        self.audience.invite()

    def _turned(self, life: Life) -> None:
        self.counts["turns"] += 1
        if life.service is Service.ADMISSION and not life.paused_until_ns > self.clock.now_ns:
            for request in admission_state_of(self.lives[Service.ADMISSION]).ledger.live.values():
                if request.deadline_ns is not None and request.deadline_ns < self.clock.now_ns:
                    raise Violation(f"{request.key.id} is alive after its deadline")

    def _note(self, note: RequestLogEntry) -> None:
        wish = None
        if isinstance(note, AcceptedLogEntry | EndedLogEntry):
            wish = next((each for each in self.audience.wishes if each.request.id == note.id), None)
            self.trace.tell("ledger", str(note))
        self.record.note(note, self.clock.now_ns, wish)

    def _charged(self, bucket: TokenBucket, tokens: int) -> None:
        self.record.taken[id(bucket)] += tokens

    def _count_board(self, life: Life) -> None:
        if isinstance(life.shell, SchedulerService):
            counters = life.shell._core.board.counters
            self.counts.update({name: getattr(counters, name) for name in _COUNTED})


def drop(logger: object, name: str, event: object) -> object:
    """Log nothing."""
    del logger, name, event
    raise structlog.DropEvent
