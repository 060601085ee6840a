"""Python's cyclic garbage collector, kept from stalling a service: what start-up allocated is left out, and pauses are counted.

Messages and values are structs that the collector does not follow, so that young collections find little; the full ones
are what costs, in proportion to everything that lives.
"""

import gc
import time

# Collections of the youngest objects after so many allocations more than releases, and of older ones after so many of
# those. Measured under 32 streams: see docs/speed.md.
YOUNG_ALLOCATIONS = 20_000
OLDER_AFTER = 20
FULL_AFTER = 50


class Garbage:
    """Counts this process's collections from `watch` on."""

    def __init__(self) -> None:
        self._began_ns = 0
        self._pauses = 0
        self._full = 0
        self._total_ns = 0
        self._longest_ns = 0

    def watch(self) -> None:
        """Collect seldom, and count."""
        gc.set_threshold(YOUNG_ALLOCATIONS, OLDER_AFTER, FULL_AFTER)
        gc.callbacks.append(self._note)

    def close(self) -> None:
        """Count no more."""
        gc.callbacks.remove(self._note)

    def counts(self) -> dict[str, int]:
        """Collections, those of everything, and microseconds spent: of all, of the longest."""
        return {
            "collections": self._pauses,
            "full": self._full,
            "total_us": self._total_ns // 1000,
            "longest_us": self._longest_ns // 1000,
        }

    def _note(self, phase: str, details: dict[str, int]) -> None:
        if phase == "start":
            self._began_ns = time.perf_counter_ns()
            return
        taken_ns = time.perf_counter_ns() - self._began_ns
        self._pauses += 1
        self._full += details["generation"] == 2
        self._total_ns += taken_ns
        self._longest_ns = max(self._longest_ns, taken_ns)


def freeze() -> None:
    """Collect now, and leave everything that is alive out of all later collections: it lives as long as the process."""
    gc.collect()
    gc.freeze()
