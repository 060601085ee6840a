"""What goes wrong from outside, and when: deaths, standstills, changed policies. All drawn from the run's one seed."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Final

from fakes.simulated.chance import Chance
from fakes.simulated.clock import MILLISECOND, Agenda, Clock
from fakes.simulated.life import Life

from noria.proto.base import Service

STILL_AFTER_NS: Final = 1_200 * MILLISECOND


class Fate:
    """Faults happen until `calm`. mortal: who may die."""

    def __init__(
        self,
        draw: Random,
        agenda: Agenda,
        clock: Clock,
        chance: Chance,
        lives: Mapping[Service, Life],
        mortal: Sequence[Service],
        tell: Callable[[str, str], None],
        counts: Counter[str],
    ) -> None:
        self.still = False
        self._random = draw
        self._agenda = agenda
        self._clock = clock
        self._chance = chance
        self._lives = lives
        self._mortal = mortal
        self._tell = tell
        self._counts = counts

    def begin(self, change: Callable[[], None], rewind: Callable[[], None], disk_full: Callable[[bool], None]) -> None:
        """Draw when what happens.

        change: have the policy changed. rewind: have a stream begin again. disk_full: whether the journal has no room.
        """
        self._agenda.after(STILL_AFTER_NS, self.calm)
        self._doom_next()
        for _ in range(self._chance.pauses):
            self._agenda.after(self._chance.between(0, STILL_AFTER_NS), self._pause)
        for _ in range(self._chance.stops):
            self._agenda.after(self._chance.between(0, STILL_AFTER_NS), self._stop)
        for _ in range(self._chance.drains):
            self._agenda.after(self._chance.between(0, STILL_AFTER_NS), self._drain)
        for _ in range(self._chance.changes):
            self._agenda.after(self._chance.between(0, STILL_AFTER_NS), change)
        for _ in range(self._chance.full_disks):
            begin_ns = self._chance.between(0, STILL_AFTER_NS)
            end_ns = min(begin_ns + self._chance.between(0, 500 * MILLISECOND), STILL_AFTER_NS)
            self._agenda.after(begin_ns, lambda: disk_full(True))
            self._agenda.after(end_ns, lambda: disk_full(False))
        for _ in range(self._chance.rewinds):
            self._agenda.after(self._chance.between(100 * MILLISECOND, STILL_AFTER_NS // 2), rewind)

    def calm(self) -> None:
        """From now on nothing goes wrong any more."""
        self.still = True
        self._chance.still()
        for life in self._lives.values():
            life.doomed = None
        self._tell("faults", "are over")

    def _doom_next(self) -> None:
        if self._chance.deaths <= 0:
            return
        self._chance.deaths -= 1
        self._agenda.after(self._chance.between(0, 2 * self._chance.death_ns), self._doom)

    def _doom(self) -> None:
        if self.still:
            return
        count = self._random.choice([1, 1, 1, 2, 3, len(self._mortal)])
        for service in self._random.sample(self._mortal, min(count, len(self._mortal))):
            life = self._lives[service]
            if not life.alive:
                continue
            if self._random.random() < 0.3:
                life.die()
            else:
                # In the middle of a turn: after one of its next messages.
                life.doomed = self._random.randint(1, 12)
        self._doom_next()

    def _stop(self) -> None:
        """One process is asked to end, and started again."""
        if self.still:
            return
        service = self._random.choice(list(self._mortal))
        self._counts["stop"] += 1
        self._tell(service.value, "is asked to end")
        self._lives[service].stop()

    def _drain(self) -> None:
        """Nothing new is taken for a while, then all are asked to end, and are started again."""
        if self.still or Service.ADMISSION not in self._mortal:
            return
        self._counts["drain"] += 1
        timeout_ns = self._chance.between(0, 300 * MILLISECOND)
        self._tell("all", f"drain for {timeout_ns // MILLISECOND} ms")
        for life in self._lives.values():
            if life.alive:
                life.shell.drain(timeout_ns // MILLISECOND)
                life.wake()
        lives = list(self._lives.values())
        self._agenda.after(timeout_ns, lambda: [life.stop() for life in lives])

    def _pause(self) -> None:
        if self.still:
            return
        life = self._lives[self._random.choice(list(self._lives))]
        length_ns = self._chance.between(10 * MILLISECOND, 1_500 * MILLISECOND)
        life.paused_until_ns = self._clock.now_ns + length_ns
        self._counts["pause"] += 1
        self._tell(life.service.value, f"stands still for {length_ns // MILLISECOND} ms")
