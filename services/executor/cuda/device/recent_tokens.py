"""The tokens sampled last in each slot, kept on the device, where the next step reads them."""

import torch

from noria.services.executor.cuda.device.step_inputs import SamplingInputs, StepInputs
from noria.services.executor.cuda.layout.step_layout import NOBODY
from noria.services.executor.plan.sampling_metadata import RECENT_TOKENS


class DeviceRecentTokens:
    """By slot, its last token and the few before it; one slot more is for padding.

    last [slots + 1]; recent [slots + 1, RECENT_TOKENS], by position.
    """

    def __init__(self, max_slots: int, device: torch.device) -> None:
        self.last = torch.zeros(max_slots + 1, dtype=torch.int32, device=device)
        self.recent = torch.zeros(max_slots + 1, RECENT_TOKENS, dtype=torch.int32, device=device)

    def carried(self, step: StepInputs) -> torch.Tensor:
        """A step's token ids, with the last tokens of slots where it carries them."""
        last = self.last.index_select(0, step.carry.clamp(min=0))
        return torch.where(step.carry == NOBODY, step.token_ids, last)

    def history(self, sampled: SamplingInputs) -> torch.Tensor:
        """The tokens that penalties count, with those that were still being computed when the step was laid out."""
        if not len(sampled.pending_at):
            return sampled.history
        found = self.recent[sampled.pending_slots.long(), sampled.pending_places.long()]
        return sampled.history.index_copy(0, sampled.pending_at.long(), found)

    def note(self, sampled: SamplingInputs, ids: torch.Tensor) -> None:
        """Keep the ids that a step sampled."""
        slots, ids = sampled.slots.long(), ids.to(torch.int32)
        self.last.index_copy_(0, slots, ids)
        self.recent[slots, sampled.positions % RECENT_TOKENS] = ids
