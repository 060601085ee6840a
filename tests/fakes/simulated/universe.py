"""All cores and shells, clients, network and clock in one process, driven by one seed.

Faults happen until everything has been asked for and some time after; then all is still, and everything that was
accepted must come to its one right end, and nothing may be left anywhere.
"""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import structlog
from fakes.simulated import stack, verdict
from fakes.simulated.chance import Chance
from fakes.simulated.clock import MILLISECOND, SECOND, Agenda, Clock, simulated_time
from fakes.simulated.lane import SimulatedExecutor, SimulatedLane
from fakes.simulated.life import Life
from fakes.simulated.network import Frames, Network
from fakes.simulated.people import Person, Wish, draw_request
from fakes.simulated.verdict import Violation
from fakes.world import draw_geometry

from noria.proto.base import Header, Service, Stream
from noria.proto.execution import Failure, StepPlan
from noria.proto.wire import Codec, every_kind
from noria.services.admission import service as admission_module
from noria.services.admission.chronicle import Chronicle
from noria.services.admission.core.events import AcceptedNote, EndedNote, Note
from noria.services.scheduler.core.settings import Settings
from noria.shared.actor import Shell
from noria.shared.config import RuntimeSettings
from noria.shared.telemetry import Telemetry

_CODEC: Final = Codec(every_kind())
_ARRIVALS_NS: Final = 300 * MILLISECOND
_STILL_AFTER_NS: Final = 1_200 * MILLISECOND
_PATIENCE_NS: Final = 60 * SECOND
_HANG_NOTICED_NS: Final = 400 * MILLISECOND
_EVENTS_MAX: Final = 400_000
MORTAL: Final = (Service.SCHEDULER, Service.EXECUTOR, Service.DETOKENIZER)


class Universe:
    """One run. `journal`: whether admission may die, because it then has a journal to come back from."""

    def __init__(self, seed: int, *, trace: Callable[[str], None] | None = None, journal: bool = False) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.clock = Clock()
        self.agenda = Agenda(self.clock)
        self.chance = Chance.of(self.random)
        self.network = Network(self.clock, self.agenda, self.chance)
        self.mortal = (*MORTAL, Service.ADMISSION) if journal else MORTAL
        self.settings = _draw_settings(self.random)
        self.geometry = draw_geometry(self.random, self.settings.max_batch_tokens)
        self.runtime = RuntimeSettings(
            heartbeat_s=0.15,
            peer_timeout_s=0.7,
            high_water_mark=self.chance.high_water_mark,
            outbox_messages_max=self.chance.outbox_messages_max,
        )
        self.lives: dict[Service, Life] = {}
        self.people: list[Person] = []
        self.accepted: dict[int, AcceptedNote] = {}
        self.ended: dict[Stream, EndedNote] = {}
        self.blamed: Counter[Stream] = Counter()
        self.counts: Counter[str] = Counter()
        self.still = False
        self._trace = trace

    def run(self) -> None:
        """From the first process to the last check. Raises AssertionError, or whatever a process dies of by itself."""
        structlog.configure(processors=[_drop])
        with simulated_time(self.clock, random.Random(self.seed + 1)), self._chronicled():
            for service in stack.PEERS:
                self.start(service)
            self._invite()
            self.agenda.after(_STILL_AFTER_NS, self._calm)
            self._doom_next()
            for _ in range(self.chance.pauses):
                self.agenda.after(self.chance.between(0, _STILL_AFTER_NS), self._pause)
            self._until(lambda: self.still and all(wish.over for wish in self.wishes), "not everything came to an end")
            self._until(self._drained, "something is left")
            verdict.judge(self.people, self.accepted, self.ended, self.counts)
            assert self.lives[Service.ADMISSION].shell.snapshot()["totals"]["in_flight"] == 0

    @property
    def wishes(self) -> list[Wish]:
        """All requests of all people."""
        return [wish for person in self.people for wish in person.wishes]

    def _until(self, condition: Callable[[], bool], complaint: str) -> None:
        end_ns = self.clock.now_ns + _PATIENCE_NS
        for count in range(_EVENTS_MAX):
            if count % 16 == 0 and condition():
                return
            if not self.agenda.step() or self.clock.now_ns > end_ns:
                break
            self.counts["events"] += 1
        if not condition():
            raise Violation(f"{complaint}: {self.state()}")

    def start(self, service: Service) -> None:
        """Begin a new life of a service."""
        life = self.lives[service] = Life(service, self.network, self.agenda, self.clock)
        life.on_death = self._died
        life.on_turn = self._turned
        life.on_send = self._sent
        peers = {peer: stack.endpoint(peer) for peer in stack.PEERS[service]}
        life.begin(peers, stack.endpoint(service), self.runtime, self._build)
        _check_every_event(life.shell)
        if self._trace is not None:
            self._overhear(life)
        self.tell(service.value, f"starts as {life.mailbox.incarnation:x}")

    def _build(self, life: Life) -> Shell:
        match life.service:
            case Service.ADMISSION:
                return stack.admission(life, self.agenda.after)
            case Service.SCHEDULER:
                return stack.scheduler(life, self.settings)
            case Service.DETOKENIZER:
                return stack.detokenizer(life)
            case _:
                return self._executor(life)

    def _executor(self, life: Life) -> SimulatedExecutor:
        lane = SimulatedLane(
            self.geometry, self.agenda, self.chance, life.wake, self._step_failed, lambda: self._hung(life)
        )
        return SimulatedExecutor(
            life.actor, Telemetry(Service.EXECUTOR, life.mailbox.incarnation, stack.NO_TELEMETRY), lane
        )

    def _died(self, life: Life) -> None:
        self.counts[f"death of {life.service.value}"] += 1
        self.tell(life.service.value, "dies")
        if isinstance(life.shell, SimulatedExecutor):
            life.shell.close()
        self.agenda.after(self.chance.between(5 * MILLISECOND, 120 * MILLISECOND), lambda: self.start(life.service))

    def _hung(self, life: Life) -> None:
        """A step never ends; whoever watches progress kills the process after a while."""
        self.counts["hang"] += 1
        self.tell(life.service.value, "hangs")
        self.agenda.after(_HANG_NOTICED_NS, life.die)

    def _step_failed(self, plan: StepPlan, failure: Failure) -> None:
        self.counts[f"step failed: {failure.value}"] += 1
        self.tell("executor", f"fails step {plan.epoch}.{plan.number}: {failure.value}")
        if failure is Failure.ERROR:
            self.counts["errors injected"] += 1

    def _doom_next(self) -> None:
        if self.chance.deaths <= 0:
            return
        self.chance.deaths -= 1
        self.agenda.after(self.chance.between(0, 2 * self.chance.death_ns), self._doom)

    def _doom(self) -> None:
        if self.still:
            return
        count = self.random.choice([1, 1, 1, 2, 3])
        for service in self.random.sample(self.mortal, min(count, len(self.mortal))):
            life = self.lives[service]
            if not life.alive:
                continue
            if self.random.random() < 0.3:
                life.die()
            else:
                # In the middle of a turn: after one of its next messages.
                life.doomed = self.random.randint(1, 12)
        self._doom_next()

    def _pause(self) -> None:
        if self.still:
            return
        service = self.random.choice(list(stack.PEERS))
        life = self.lives[service]
        length_ns = self.chance.between(10 * MILLISECOND, 1_500 * MILLISECOND)
        life.paused_until_ns = self.clock.now_ns + length_ns
        self.counts["pause"] += 1
        self.tell(service.value, f"stands still for {length_ns // MILLISECOND} ms")

    def _calm(self) -> None:
        self.still = True
        self.chance.still()
        for life in self.lives.values():
            life.doomed = None
        self.tell("faults", "are over")

    def _invite(self) -> None:
        draw = self.random
        requests: list[Any] = []
        start_ns = self.clock.now_ns
        for number in range(draw.randint(1, 3)):
            wishes = []
            for each in range(draw.randint(1, 4)):
                request = draw_request(draw, f"{number}-{each}", requests)
                requests.append(request)
                at_ns = start_ns + draw.randint(0, _ARRIVALS_NS)
                wishes.append(Wish(request, at_ns, draw.choice([None] * 8 + [0, 1, 4])))
            person = Person(str(number), self.network, self.agenda, self.clock, wishes)
            person.connect(stack.DOOR)
            self.people.append(person)
        if len(self.people) > 1 and draw.random() < 0.2:
            self.agenda.after(draw.randint(0, _STILL_AFTER_NS), self._leave)

    def _leave(self) -> None:
        person = self.people[-1]
        self.tell(person.name, "is gone")
        person.leave()

    def tell(self, who: str, what: str) -> None:
        """Add to the trace."""
        if self._trace is not None:
            at_ms = (self.clock.now_ns - 1_000 * SECOND) / MILLISECOND
            self._trace(f"{at_ms:10.3f} {who:12s} {what}")

    def _sent(self, life: Life, to: str, frames: Frames) -> None:
        if self._trace is None:
            return
        header = _CODEC.header(frames)
        lives = f"{header.incarnation:x}"[:4] + ">" + f"{header.recipient:x}"[:4]
        body = repr(_CODEC.body(header, frames))
        self.tell(life.service.value, f"→ {to.removeprefix('sim://')} #{header.sequence} {lives} {body[:400]}")

    def _overhear(self, life: Life) -> None:
        joined, lost, greet = life.shell.joined, life.shell.lost, life.mailbox.greet

        def tell_joined(peer: Service) -> None:
            self.tell(life.service.value, f"is joined by {peer.value}")
            joined(peer)

        def tell_lost(peer: Service) -> None:
            self.tell(life.service.value, f"loses {peer.value}")
            lost(peer)

        def tell_greet(header: Header, *, answer: bool = True) -> bool:
            result = greet(header, answer=answer)
            lives = f"{header.incarnation:x}"[:4] + ">" + f"{header.recipient:x}"[:4]
            self.tell(life.service.value, f"is greeted by {header.sender} {lives} answer={answer}: {result}")
            return result

        life.shell.joined, life.shell.lost = tell_joined, tell_lost  # type: ignore[method-assign]  # a wiretap
        life.mailbox.greet = tell_greet  # type: ignore[method-assign]  # a wiretap

    def _turned(self, life: Life) -> None:
        self.counts["turns"] += 1

    def note(self, note: Note) -> None:
        """Admission's book of what became of requests: each end must be the only one."""
        match note:
            case AcceptedNote():
                if note.number in self.accepted:
                    raise Violation(f"request {note.number} was accepted twice")
                self.accepted[note.number] = note
                self.tell("ledger", f"accepts {note.id} as {note.number}")
            case EndedNote():
                stream = Stream(note.number, note.choice)
                if stream in self.ended:
                    raise Violation(f"{stream} ended as {self.ended[stream].end.label}, then as {note.end.label}")
                self.ended[stream] = note
                self.tell("ledger", f"ends {note.id} choice {note.choice}: {note.end.label} after {note.output_tokens}")
            case _:
                pass

    def _chronicled(self) -> "_Chronicled":
        return _Chronicled(self.note)

    def _drained(self) -> bool:
        return not any(self.state().values())

    def state(self) -> dict[str, object]:
        """Everything that must be nothing in the end."""
        found: dict[str, object] = {
            "unended": [wish.request.id for wish in self.wishes if not wish.over],
            "calls": [list(person.exchange.calls) for person in self.people if person.alive and person.exchange.calls],
        }
        for service, life in self.lives.items():
            if not life.alive:
                found[service.value] = "dead"
                continue
            counts = life.shell.snapshot()
            kept = {
                Service.ADMISSION: ("requests", "streams", "tokenizing", "attachments", "orphans"),
                Service.SCHEDULER: ("waiting", "running", "finished", "blocks_used", "slots_used", "in_flight"),
                Service.EXECUTOR: ("queued_plans",),
                Service.DETOKENIZER: ("streams", "spans"),
            }[service]
            found |= {f"{service.value} {name}": counts[name] for name in kept}
        return found


class _Chronicled:
    """While this lasts, admission's chronicle also tells the universe."""

    def __init__(self, note: Callable[[Note], None]) -> None:
        class Recorded(Chronicle):
            def write(self, written: Note) -> None:
                super().write(written)
                note(written)

        self._recorded = Recorded

    def __enter__(self) -> None:
        admission_module.Chronicle = self._recorded  # type: ignore[misc]  # a wiretap

    def __exit__(self, *error: object) -> None:
        admission_module.Chronicle = Chronicle  # type: ignore[misc]  # as it was


def _check_every_event(shell: Any) -> None:
    """Have a core state its invariants after every event."""
    core = getattr(shell, "_core", None)
    if core is None:
        return
    apply, check = core.apply, core.check

    def checked(event: object) -> object:
        result = apply(event)
        check()
        return result

    core.apply = checked


def _drop(logger: object, name: str, event: object) -> object:
    del logger, name, event
    raise structlog.DropEvent


def _draw_settings(draw: random.Random) -> Settings:
    return Settings(
        policy=draw.choice(["fifo", "prefill_first"]),
        max_batch_tokens=draw.choice([2, 3, 7, 16, 64]),
        max_requests_per_batch=draw.choice([1, 2, 4, 8]),
        max_cache_tokens=draw.choice([None, None, 60]),
        steps_in_flight=draw.choice([1, 2, 2]),
        stop_lookahead=draw.choice([1, 2, 4]),
        safety_margin=draw.choice([None, 0.0, 0.0, 0.0]),
        allow_block_sharing=draw.random() < 0.8,
    )
