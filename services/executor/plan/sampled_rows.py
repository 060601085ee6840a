"""Builds the sampling metadata of a step: parameters, tokens that penalties count, and what is added to logits.

Pure. Rows without penalties, bias or bans, which are most, cost nothing here but a look at their slot.
"""

import numpy as np
from numpy.typing import NDArray

from noria.services.executor.plan.limits import Integers
from noria.services.executor.plan.sampling_metadata import Floats, Ids, SamplingMetadata
from noria.services.executor.plan.slot_table import SlotTable

_NO_IDS = np.zeros(0, np.int32)


def sampling_metadata(slots: SlotTable, slot: Integers, rows: Integers) -> SamplingMetadata | None:
    """The sampling metadata of a step, None when it samples nothing. slot, rows [S]: each sampled row's slot and query token."""
    if not len(slot):
        return None
    history = _PenaltyHistory(slots, slot)
    bias_ids, bias_values, bias_starts = _bias(slots, slot)
    return SamplingMetadata(
        rows=rows,
        slots=slot,
        positions=slots.total[slot],
        parameters=slots.parameters[slot],
        history=history.ids,
        history_starts=history.starts,
        prompts=history.prompts,
        pending_at=history.pending_at,
        pending_slots=history.pending_slots,
        pending_positions=history.pending_positions,
        bias_ids=bias_ids,
        bias_values=bias_values,
        bias_starts=bias_starts,
    )


class _PenaltyHistory:
    """Token ids that penalties count, row after row: the output, and before it the prompt where repetition is penalised."""

    def __init__(self, slots: SlotTable, slot: Integers) -> None:
        counted: NDArray[np.bool_] = slots.penalised[slot]
        if not counted.any():
            nothing = np.zeros(0, np.int64)
            self.starts, self.prompts, self.ids = (
                np.zeros(len(slot) + 1, np.int64),
                np.zeros(len(slot), np.int64),
                _NO_IDS,
            )
            self.pending_slots = self.pending_positions = self.pending_at = nothing
            return
        total, prompt, known = slots.total[slot], slots.prompt[slot], slots.known[slot]
        first = np.where(slots.parameters["repetition"][slot] == 1, prompt, 0)
        lengths = np.where(counted, total - first, 0)
        self.starts = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
        self.prompts = np.where(counted, prompt - first, 0)
        self.ids = np.zeros(int(self.starts[-1]), np.int32)
        pending = np.where(counted, total - known, 0)
        for row in np.flatnonzero(counted):
            place = self.starts[row]
            self.ids[place : place + known[row] - first[row]] = slots.tokens[slot[row], first[row] : known[row]]
        of_row = np.repeat(np.arange(len(slot)), pending)
        ranks = np.arange(len(of_row)) - np.repeat(np.cumsum(pending) - pending, pending)
        self.pending_slots = slot[of_row]
        self.pending_positions = known[of_row] + ranks
        self.pending_at = self.starts[of_row] + self.pending_positions - first[of_row]


def _bias(slots: SlotTable, slot: Integers) -> tuple[Ids, Floats, Integers]:
    """Ids, values and starts by row of what is added to logits: the logit bias, and -inf at end ids before `min_tokens`."""
    starts = np.zeros(len(slot) + 1, np.int64)
    early = slots.total[slot] - slots.prompt[slot] < slots.min_tokens[slot]
    touched = np.flatnonzero(early | slots.biased[slot])
    if not len(touched):
        return _NO_IDS, np.zeros(0, np.float32), starts
    ids: list[Ids] = []
    values: list[Floats] = []
    for row in touched:
        state = slots.states[slot[row]]
        assert state is not None
        ids.append(state.bias_ids)
        values.append(state.bias_values)
        if early[row]:
            ids.append(np.array(state.end_ids, np.int32))
            values.append(np.full(len(state.end_ids), -np.inf, np.float32))
        starts[row + 1] = len(state.bias_ids) + (len(state.end_ids) if early[row] else 0)
    return np.concatenate(ids), np.concatenate(values), np.cumsum(starts)
