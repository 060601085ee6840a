"""The inventory for a scheduler that restarted: which streams are in slots or on the host, and what was sampled of them. Pure.

Only positions whose step has come back count as cached; what was sampled there is told, whether or not anybody heard
of it. To be taken when no step is under way.
"""

from noria.proto.execution import Held, Inventory, cache_digest
from noria.services.executor.plan.slot_state import SlotState
from noria.services.executor.plan.slot_table import SlotTable


def inventory(slots: SlotTable) -> Inventory:
    """List every stream of which something is cached, or whose slot was released a moment ago."""
    entries = [
        _in_slot(slots, slot, state) for slot, state in enumerate(slots.states) if state is not None and state.cached
    ]
    for swapped in slots.swapped_out.all:
        state, stash = swapped.state, swapped.stash
        ids = [*swapped.ids, *state.late]
        if stash.length <= len(ids):
            entries.append(_held(-1, state, ids, swapped.prompt, stash.length, stash.blocks))
    listed = {each.stream for each in entries}
    # Nothing is cached any more of who has left, but its last tokens may be news.
    entries += [
        _held(-1, left.state, [*left.ids, *left.state.late], left.prompt, 0, ())
        for left in slots.released_slots
        if left.state.stream not in listed
    ]
    return Inventory(slots.epoch, tuple(entries))


def _in_slot(slots: SlotTable, slot: int, state: SlotState) -> Held:
    ids = slots.tokens[slot, : slots.known[slot]].tolist()
    blocks = tuple(tuple(table[slot, : slots.blocks[group, slot]].tolist()) for group, table in enumerate(slots.tables))
    return _held(slot, state, ids, int(slots.prompt[slot]), state.cached, blocks)


def _held(
    slot: int, state: SlotState, ids: list[int], prompt: int, length: int, blocks: tuple[tuple[int, ...], ...]
) -> Held:
    return Held(
        slot=slot,
        stream=state.stream,
        attempt=state.attempt,
        digest=cache_digest(ids[:length]),
        length=length,
        blocks=blocks,
        output_ids=tuple(ids[prompt:]),
        likelihoods=tuple(state.likelihoods),
    )
