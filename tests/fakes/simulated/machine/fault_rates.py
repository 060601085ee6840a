"""The rates of faults and the durations of one run, drawn from its seed."""

import random
from dataclasses import dataclass
from typing import Final

from fakes.simulated.machine.clock import MICROSECOND, MILLISECOND

from noria.proto.base import Stream

_NEVER: Final = 0.0


@dataclass(slots=True)
class FaultRates:
    """Rates and durations of one run, drawn once. Durations in nanoseconds; rates are probabilities per message or step.

    delay_ns: usual time on a link. stall: a message, and all that follow on its connection, take up to stall_ns longer.
    duplicate: it arrives twice. cut: its connection breaks after it. inherited_mail: what a dead process had not read reaches
    its successor. deaths: how many times processes die. lane_hang: a step never ends. memory, error: a step fails.
    poison: some streams kill the executor that computes them; poison_only: they do to the end, and nothing else goes wrong.
    high_water_mark: messages on a connection.
    """

    draw: random.Random
    delay_ns: int
    stall: float
    stall_ns: int
    duplicate: float
    cut: float
    inherited_mail: float
    deaths: int
    death_ns: int
    pauses: int
    lane_hang: float
    memory: float
    error: float
    high_water_mark: int
    outbox_messages_max: int
    door_messages_max: int
    slow_readers: float
    deadlines: float
    long: bool
    arrivals_ns: int
    clients: int
    wishes_max: int
    requests_max: int
    queue_requests_max: int
    queue_tokens_max: int
    changes: int
    client_deaths: int
    poison: bool
    stops: int
    drains: int
    new_attempts: int
    full_disks: int
    poison_only: bool = False

    @classmethod
    def of(cls, draw: random.Random) -> "FaultRates":
        """Draw all rates; each is zero for some seeds, so that every fault also happens without the others."""
        return cls(
            draw=draw,
            delay_ns=draw.choice([50 * MICROSECOND, 500 * MICROSECOND, 3 * MILLISECOND]),
            stall=draw.choice([_NEVER, 0.01, 0.03]),
            stall_ns=draw.choice([20 * MILLISECOND, 200 * MILLISECOND, 1_500 * MILLISECOND]),
            duplicate=draw.choice([_NEVER, 0.01, 0.03]),
            cut=draw.choice([_NEVER, _NEVER, 0.01]),
            inherited_mail=draw.choice([0.2, 0.8]),
            deaths=draw.choice([0, 1, 2, 3, 5, 8]),
            death_ns=draw.choice([40 * MILLISECOND, 200 * MILLISECOND]),
            pauses=draw.choice([0, 0, 1, 3]),
            lane_hang=draw.choice([_NEVER, _NEVER, 0.004]),
            memory=draw.choice([_NEVER, _NEVER, 0.02]),
            error=draw.choice([_NEVER, _NEVER, 0.004, 0.03]),
            high_water_mark=draw.choice([4, 8, 1000]),
            outbox_messages_max=draw.choice([6, 32, 1000]),
            door_messages_max=draw.choice([1, 2, 8]),
            slow_readers=draw.choice([_NEVER, 0.3]),
            deadlines=draw.choice([0.03, 0.03, 0.3]),
            long=draw.random() < 0.4,
            arrivals_ns=draw.choice([20 * MILLISECOND, 300 * MILLISECOND]),
            clients=draw.randint(1, 3),
            wishes_max=draw.choice([2, 4, 4, 6]),
            requests_max=draw.choice([64, 64, 64, 4]),
            queue_requests_max=draw.choice([4096, 4096, 4]),
            queue_tokens_max=draw.choice([4_000_000, 4_000_000, 120]),
            changes=draw.choice([0, 0, 1, 2]),
            client_deaths=draw.choice([0, 0, 1, 3]),
            poison=draw.random() < 0.15,
            stops=draw.choice([0, 0, 1, 2]),
            drains=draw.choice([0, 0, 0, 1]),
            new_attempts=draw.choice([0, 0, 1, 2]),
            full_disks=draw.choice([0, 0, 0, 1, 2]),
        )

    def keep_only_deaths(self, deaths: int) -> None:
        """Turn off all faults but so many deaths, one after another."""
        self.end_faults()
        self.deaths, self.death_ns, self.client_deaths = deaths, 300 * MILLISECOND, 0
        self.clients, self.wishes_max = 3, 6
        self.delay_ns = 50 * MICROSECOND
        self.high_water_mark = self.outbox_messages_max = 1_000
        self.arrivals_ns = 20 * MILLISECOND
        self.deadlines, self.long = 0.0, True

    def keep_only_poison(self) -> None:
        """Turn off all faults but poisoned streams, which stay until the end."""
        self.keep_only_deaths(deaths=0)
        self.poison_only = True

    def end_faults(self) -> None:
        """Turn off all faults; messages on the way still take their time."""
        self.stall = self.duplicate = self.cut = self.lane_hang = self.memory = self.error = _NEVER
        self.slow_readers = _NEVER
        self.deaths = self.pauses = self.changes = self.stops = self.drains = self.new_attempts = self.full_disks = 0
        self.poison = False

    def happens(self, rate: float) -> bool:
        """Draw whether something of this rate happens now."""
        return rate > 0.0 and self.draw.random() < rate

    def poisons(self, stream: Stream) -> bool:
        """Return whether a stream kills the executor that computes it."""
        return (self.poison or self.poison_only) and (stream.request + stream.choice) % 5 == 0

    def between(self, least_ns: int, most_ns: int) -> int:
        """Draw a duration, in nanoseconds."""
        return self.draw.randint(least_ns, most_ns)
