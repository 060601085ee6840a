"""Python's cyclic garbage collector, kept from stalling a service: what start-up allocated is left out, and pauses are counted.

Messages and values are structs that the collector does not follow, so that young collections find little; the full ones
are what costs, in proportion to everything that lives. So a full one comes when a process has become idle and little lives.
It gives back what the interpreter keeps of released tuples, too: up to 2,000 of each length up to 20, which come together
where a tuple is made in another length than it is released in, as from a generator. In admission that was 0.3 MiB in
10,000 requests.
"""

import gc
import time
from collections.abc import Callable

# Collections of the youngest objects after so many allocations more than releases, and of older ones after so many of
# those. Measured under 32 streams: see docs/speed.md.
YOUNG_ALLOCATIONS = 20_000
OLDER_AFTER = 20
FULL_AFTER = 50
# The longest full collection seen, in a scheduler that remembers all it ever does, took 22 ms.
IDLE_INTERVAL_NS = 60_000_000_000


class GarbageCollection:
    """Tunes Python's cyclic garbage collector and counts the pauses of this process from `start` on."""

    def __init__(self) -> None:
        self._began_ns = 0
        self._pauses = 0
        self._full = 0
        self._total_ns = 0
        self._longest_ns = 0
        self._next_ns = 0
        self._progress = 0

    def start(self) -> None:
        """Set rare collections and begin to count them."""
        gc.set_threshold(YOUNG_ALLOCATIONS, OLDER_AFTER, FULL_AFTER)
        gc.callbacks.append(self._on_collection)

    def collect_when_idle(self, now_ns: int, progress: Callable[[], tuple[int, bool]]) -> None:
        """Run a full collection if the process is idle, has worked since the last one, and that was a minute ago.

        progress: returns work done so far and whether some is under way, as `Shell.progress`.
        """
        if now_ns < self._next_ns:
            return
        done, busy = progress()
        if not busy and done != self._progress:
            self._next_ns, self._progress = now_ns + IDLE_INTERVAL_NS, done
            gc.collect()

    def close(self) -> None:
        """Stop counting."""
        gc.callbacks.remove(self._on_collection)

    def counts(self) -> dict[str, int]:
        """The number of collections, of full ones among them, and microseconds: of all together, of the longest."""
        return {
            "collections": self._pauses,
            "full": self._full,
            "total_us": self._total_ns // 1000,
            "longest_us": self._longest_ns // 1000,
        }

    def _on_collection(self, phase: str, details: dict[str, int]) -> None:
        if phase == "start":
            self._began_ns = time.perf_counter_ns()
            return
        taken_ns = time.perf_counter_ns() - self._began_ns
        self._pauses += 1
        self._full += details["generation"] == 2
        self._total_ns += taken_ns
        self._longest_ns = max(self._longest_ns, taken_ns)


def freeze_start_up_objects() -> None:
    """Collect now, and leave everything that is alive out of all later collections: it lives as long as the process."""
    gc.collect()
    gc.freeze()
