"""What the slots and the host still hold of streams, for a scheduler that does not know it. Pure.

Only positions whose step has come back count as cached; what was sampled there is told, whether or not anybody heard
of it. To be taken when no step is under way.
"""

from noria.proto.execution import Held, Inventory, cache_digest
from noria.services.executor.plan.slot_state import Occupant
from noria.services.executor.plan.slot_table import Slots


def inventory(slots: Slots) -> Inventory:
    """List every stream that something is cached of, or was a moment ago."""
    entries = [
        _in_slot(slots, slot, occupant)
        for slot, occupant in enumerate(slots.occupants)
        if occupant is not None and occupant.cached
    ]
    for stashed in slots.stashes.all:
        occupant, stash = stashed.occupant, stashed.stash
        ids = [*stashed.ids, *occupant.late]
        if stash.length <= len(ids):
            entries.append(_held(-1, occupant, ids, stashed.prompt, stash.length, stash.blocks))
    listed = {each.stream for each in entries}
    # Nothing is cached any more of who has left, but its last tokens may be news.
    entries += [
        _held(-1, left.occupant, [*left.ids, *left.occupant.late], left.prompt, 0, ())
        for left in slots.departures
        if left.occupant.stream not in listed
    ]
    return Inventory(slots.epoch, tuple(entries))


def _in_slot(slots: Slots, slot: int, occupant: Occupant) -> Held:
    ids = slots.tokens[slot, : slots.known[slot]].tolist()
    blocks = tuple(tuple(table[slot, : slots.blocks[group, slot]].tolist()) for group, table in enumerate(slots.tables))
    return _held(slot, occupant, ids, int(slots.prompt[slot]), occupant.cached, blocks)


def _held(
    slot: int, occupant: Occupant, ids: list[int], prompt: int, length: int, blocks: tuple[tuple[int, ...], ...]
) -> Held:
    return Held(
        slot=slot,
        stream=occupant.stream,
        attempt=occupant.attempt,
        digest=cache_digest(ids[:length]),
        length=length,
        blocks=blocks,
        output_ids=tuple(ids[prompt:]),
        likelihoods=tuple(occupant.likelihoods),
    )
