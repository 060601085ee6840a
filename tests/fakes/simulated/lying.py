"""A universe whose services are told wrong numbers by each other for a while; then all of them begin again.

Nobody has to be right in it. Whoever is told something impossible may die of it, as a process does that raises; nobody
may hang, and from the journal and with true neighbours everything comes to an end.
"""

import random
import traceback
from collections import Counter
from typing import Final

import structlog
from fakes.simulated import stack
from fakes.simulated.clock import MILLISECOND, simulated_time
from fakes.simulated.fate import STILL_AFTER_NS
from fakes.simulated.lane import SimulatedExecutor
from fakes.simulated.lies import Liar
from fakes.simulated.life import Life
from fakes.simulated.universe import Universe, drop

from noria.proto.base import Service
from noria.services.admission.core.state.events import RequestLogEntry

_UNCLEAN: Final = (MemoryError, RecursionError)


class LyingUniverse(Universe):
    """rate: of messages between services in which something is changed. deaths: of what processes died, and where."""

    def __init__(self, seed: int, rate: float = 0.01) -> None:
        super().__init__(seed, only=Service.ADMISSION)
        self.chance.deaths = 0
        self.scene.journal = True
        self.liar = Liar(seed, rate)
        self.network.alter = self.liar.alter
        self.deaths: Counter[str] = Counter()
        self._honest = False

    def run(self) -> None:
        """Until everything has come to an end and nothing is left. Raises AssertionError when it does not."""
        structlog.configure(processors=[drop])
        with simulated_time(self.clock, random.Random(self.seed + 1)):
            for service in stack.PEERS:
                self._start(service)
            self._invite()
            self.agenda.after(STILL_AFTER_NS, self._repent)
            self._until(
                lambda: self._honest and all(wish.over for wish in self.audience.wishes), "not all came to an end"
            )
            self._until(lambda: not any(self.state().values()), "something is left")

    def _repent(self) -> None:
        """From now on all tell the truth, and know nothing but what is on record."""
        self.liar.rate = 0.0
        for life in list(self.lives.values()):
            life.die()
        self._honest = True

    def _invite(self) -> None:
        super()._invite()
        for person in self.people:
            person.gullible = False

    def _watch(self, life: Life, *, again: bool) -> None:
        life.on_error = self._dies_of

    def _executor(self, life: Life) -> SimulatedExecutor:
        shell = super()._executor(life)
        shell.forgive()
        return shell

    def _dies_of(self, life: Life, error: Exception) -> bool:
        if isinstance(error, _UNCLEAN):
            return False
        frame = traceback.extract_tb(error.__traceback__)[-1]
        self.deaths[f"{life.service.value}: {type(error).__name__} in {frame.name}"] += 1
        return True

    def _turned(self, life: Life) -> None:
        self.counts["turns"] += 1

    def _note(self, note: RequestLogEntry) -> None:
        """What admission says of itself need not be true here."""

    def _poisoned(self, life: Life) -> None:
        self.agenda.after(MILLISECOND, life.die)
