"""The executor's slots: which are free, and which of them the next plan must release."""

import heapq


class FreeSlots:
    """Slots 0 to `count - 1`, lowest first.

    A slot given back is free from the next plan on, whose `release` names it: that plan is applied after every step
    that still used the slot, and its releases before its fills.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count))
        self._pending: list[int] = []
        self._unsent_releases: list[int] = []
        self._reset = False

    @property
    def free(self) -> int:
        """How many slots can be filled in the present plan."""
        return len(self._free)

    @property
    def used(self) -> int:
        """How many slots the executor believes filled."""
        return self.count - len(self._free) + len(self._unsent_releases)

    def take(self) -> int:
        """Take the lowest free slot."""
        return heapq.heappop(self._free)

    def give_back(self, slot: int) -> None:
        """Free a slot from the next plan on."""
        self._pending.append(slot)

    def put_back(self, slot: int) -> None:
        """Free a slot at once that the executor has not been asked to fill."""
        heapq.heappush(self._free, slot)

    def begin_plan(self) -> bool:
        """Free what was given back since the last plan. True when the executor has releases to be sent."""
        for slot in self._pending:
            heapq.heappush(self._free, slot)
        self._unsent_releases += self._pending
        self._pending.clear()
        return self._reset or bool(self._unsent_releases)

    def take_releases(self) -> tuple[int, ...]:
        """The releases for the plan that is being sent; each once."""
        self._reset = False
        releases = tuple(self._unsent_releases)
        self._unsent_releases.clear()
        return releases

    def clear(self) -> None:
        """All slots are free; the executor learns it from the plan that opens the epoch."""
        self._free = list(range(self.count))
        self._pending.clear()
        self._unsent_releases.clear()
        self._reset = True

    def check(self, held: list[int]) -> None:
        """Raises AssertionError unless every slot is held once, free, or given back."""
        every = sorted([*held, *self._free, *self._pending])
        assert every == list(range(self.count)), "a slot has two holders or none"
