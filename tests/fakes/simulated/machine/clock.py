"""Simulated time, stand-ins for the modules time and secrets, and the queue of events to come."""

import contextlib
import heapq
import random
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from typing import Final

MICROSECOND: Final = 1_000
MILLISECOND: Final = 1_000_000
SECOND: Final = 1_000_000_000


class SimulatedClock:
    """Stands in for the `time` module in everything that runs inside the simulation."""

    def __init__(self) -> None:
        self.now_ns = 1_000 * SECOND
        self.sleep: Callable[[float], None]

    def monotonic_ns(self) -> int:
        return self.now_ns

    def monotonic(self) -> float:
        return self.now_ns / SECOND

    def time(self) -> float:
        return 1_700_000_000 + self.now_ns / SECOND

    def time_ns(self) -> int:
        return 1_700_000_000 * SECOND + self.now_ns

    def perf_counter(self) -> float:
        return self.now_ns / SECOND


class SimulatedSecrets:
    """Stands in for the `secrets` module, so that a seed decides every incarnation and every drawn seed."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw

    def randbits(self, bits: int) -> int:
        return self._draw.getrandbits(bits)

    def token_hex(self, count: int = 16) -> str:
        return self._draw.randbytes(count).hex()

    def token_bytes(self, count: int = 16) -> bytes:
        return self._draw.randbytes(count)


class EventQueue:
    """Actions in order of simulated time; actions of one moment run in the order in which they were added."""

    def __init__(self, clock: SimulatedClock) -> None:
        self._clock = clock
        clock.sleep = self.sleep
        self._count = 0
        self._entries: list[tuple[int, int, Callable[[], None]]] = []

    def at(self, at_ns: int, action: Callable[[], None]) -> None:
        """Run an action at a time; at once when that has passed."""
        self._count += 1
        heapq.heappush(self._entries, (max(at_ns, self._clock.now_ns), self._count, action))

    def after(self, delay_ns: int, action: Callable[[], None]) -> None:
        """Run an action after a delay."""
        self.at(self._clock.now_ns + delay_ns, action)

    def step(self) -> bool:
        """Advance the clock to the next action and run it; False when there is none."""
        if not self._entries:
            return False
        at_ns, _, action = heapq.heappop(self._entries)
        self._clock.now_ns = at_ns
        action()
        return True

    def sleep(self, duration_s: float) -> None:
        """Stand in for time.sleep: run everything that is due meanwhile, then advance the clock."""
        until_ns = self._clock.now_ns + int(duration_s * SECOND)
        while self._entries and self._entries[0][0] <= until_ns:
            self.step()
        self._clock.now_ns = max(self._clock.now_ns, until_ns)


@contextlib.contextmanager
def simulated_time(clock: SimulatedClock, draw: random.Random) -> Iterator[None]:
    """Replace time and secrets by the simulated ones in every loaded module of the product."""
    replaced: list[tuple[object, str, object]] = []
    stand_ins = ((time, clock), (secrets, SimulatedSecrets(draw)))
    for name, module in list(sys.modules.items()):
        if not name.startswith("noria."):
            continue
        for real, stand_in in stand_ins:
            if getattr(module, real.__name__, None) is real:
                replaced.append((module, real.__name__, real))
                setattr(module, real.__name__, stand_in)
    try:
        yield
    finally:
        for module, attribute, real_module in replaced:
            setattr(module, attribute, real_module)
