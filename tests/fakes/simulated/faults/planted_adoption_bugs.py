"""Bugs planted into how a new scheduler adopts the cache that an executor holds; more are in `planted_bugs`."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

from msgspec.structs import replace

from noria.proto.execution import Held, Inventory, StepPlan
from noria.services.executor.plan.slot_table import SlotTable
from noria.services.scheduler.core.cache.cache_allocator import CacheAllocator
from noria.services.scheduler.core.cache.host_pool import HostPool
from noria.services.scheduler.core.handlers.cache_adoption import CacheAdoption
from noria.services.scheduler.core.state.request import Request

Fault = Callable[[], AbstractContextManager[None]]


@contextlib.contextmanager
def planted(owner: Any, name: str, value: object) -> Iterator[None]:
    """Replace an attribute of a class or module while the body runs."""
    sound = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, sound)


def _too_much() -> AbstractContextManager[None]:
    """A scheduler adopts one position more than the executor holds."""
    sound = CacheAdoption.adopt

    def adopt(self: CacheAdoption, request: Request, blocks: Sequence[Sequence[int]], length: int, now_ns: int) -> bool:
        return sound(self, request, blocks, min(length + 1, request.known - 1), now_ns)

    return planted(CacheAdoption, "adopt", adopt)


def _host_in_disorder() -> AbstractContextManager[None]:
    """A scheduler adopts the host blocks of a stream in another order."""
    sound = CacheAdoption.adopt_stored

    def adopt_stored(self: CacheAdoption, request: Request, blocks: Sequence[Sequence[int]], length: int) -> bool:
        return sound(self, request, [tuple(reversed(table)) for table in blocks], length)

    return planted(CacheAdoption, "adopt_stored", adopt_stored)


def _anothers_cache() -> AbstractContextManager[None]:
    """A scheduler adopts one stream's slot for another stream."""
    sound = CacheAdoption.inventory_received

    def inventory_received(self: CacheAdoption, inventory: Inventory) -> None:
        held = [each for each in inventory.entries if each.slot >= 0]
        turned = dict(zip((each.stream for each in held), [*held[1:], *held[:1]], strict=True))
        entries = tuple(
            replace(each, blocks=turned[each.stream].blocks) if each.slot >= 0 else each for each in inventory.entries
        )
        sound(self, replace(inventory, entries=entries))

    return planted(CacheAdoption, "inventory_received", inventory_received)


def _not_claimed() -> AbstractContextManager[None]:
    """Adopted blocks stay free, so that others may get them."""

    def claim(self: CacheAllocator, tables: Sequence[Sequence[int]]) -> bool:
        return True

    return planted(CacheAllocator, "_claim", claim)


def _token_again() -> AbstractContextManager[None]:
    """A scheduler appends the last token that it knows once more, as if it were new."""
    sound = CacheAdoption._learn_output

    def learn(self: CacheAdoption, request: Request, held: Held, now_ns: int) -> None:
        ids, known = held.output_ids, len(request.progress.output)
        if len(ids) > known > 0:
            held = replace(held, output_ids=(*ids[:known], ids[known - 1], *ids[known:]))
        sound(self, request, held, now_ns)

    return planted(CacheAdoption, "_learn_output", learn)


def _not_emptied() -> AbstractContextManager[None]:
    """The executor keeps what is in its slots when an epoch is opened."""
    sound = SlotTable.apply

    def apply(self: SlotTable, plan: StepPlan) -> None:
        occupants = list(self.states)
        if plan.number == 1:
            taken = {fill.slot for fill in plan.fill}
            self.clear()
            for slot, occupant in enumerate(occupants):
                if slot not in taken:
                    self.states[slot] = occupant
            self.clear = lambda: None  # type: ignore[method-assign]  # the fault
        try:
            sound(self, plan)
        finally:
            self.__dict__.pop("clear", None)

    return planted(SlotTable, "apply", apply)


def _left_claimed() -> AbstractContextManager[None]:
    """A scheduler claims the blocks of unknown streams and never frees them."""
    sound = CacheAdoption.settle

    def settle(self: CacheAdoption, now_ns: int) -> None:
        inventory, memory = self._inventory, self._state.memory
        waited = self.due_ns is not None
        sound(self, now_ns)
        if waited and self.due_ns is None and inventory is not None and memory is not None:
            for held in inventory.entries:
                if held.slot >= 0 and held.stream not in self._state.requests:
                    memory.cache._claim([list(table) for table in held.blocks])

    return planted(CacheAdoption, "settle", settle)


def _host_taken_for_blank() -> AbstractContextManager[None]:
    """Adopted host blocks stay free, so that they may be overwritten."""
    sound = HostPool.claim

    def claim(self: HostPool, tables: Sequence[Sequence[int]], length: int) -> object:
        stored = sound(self, tables, length)
        if stored is not None:
            for each, table in zip(self._blocks, stored.tables, strict=True):
                for block in table:
                    each.give_back(block)
        return stored

    return planted(HostPool, "claim", claim)


FAULTS: Final[dict[str, Fault]] = {
    "more taken over than is held": _too_much,
    "host blocks taken over in disorder": _host_in_disorder,
    "another's cache taken over": _anothers_cache,
    "blocks taken over and not claimed": _not_claimed,
    "a token taken over again": _token_again,
    "slots not emptied at a takeover": _not_emptied,
    "blocks claimed of streams that are gone": _left_claimed,
    "host blocks taken over and not claimed": _host_taken_for_blank,
}
