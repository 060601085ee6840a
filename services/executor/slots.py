"""What the executor remembers between steps: each slot's tokens, block tables and sampling, and the epoch.

Applies plans by the epoch and number rules and refuses what breaks them. Knows no tensors and no policy. Tokens that
a step in flight will produce are counted as pending: their place is known before their value is.
"""

from dataclasses import dataclass, field

import numpy as np

from noria.proto.base import Stream, TokenLogprob
from noria.proto.execution import Fill, Grow, Replace, Stash, StepPlan
from noria.proto.sampling import Sampling
from noria.services.executor.departures import Departure, Departures
from noria.services.executor.sampler import PARAMETERS, Floats, Ids, record
from noria.services.executor.shape import RESERVED_CHUNKS, Shape
from noria.services.executor.stashes import Stashed, Stashes


class IllegalPlanError(ValueError):
    """A plan that breaks the protocol; its epoch is dead and a new one must be opened."""


@dataclass(slots=True, eq=False)
class Occupant:
    """The stream in a slot. bias_ids, bias_values: its logit bias.

    cached: positions whose keys and values are in the cache, by what it came with and the steps that have come back.
    likelihoods: of the tokens sampled since it came, if it asks for them; late: those tokens that came when it had left
    the slot.
    """

    stream: Stream
    attempt: int
    sampling: Sampling
    end_ids: tuple[int, ...]
    bias_ids: Ids
    bias_values: Floats
    cached: int = 0
    likelihoods: list[TokenLogprob] = field(default_factory=list)
    late: list[int] = field(default_factory=list)


class Slots:
    """All slots of one epoch as flat arrays.

    tokens[slot, i] is the id at position i; tables[group][slot, i] the block of page i, or of the pages that share the
    ring's entry i; `known` counts ids whose value is here, `total` also those still pending, `prompt` those of the
    prompt, blocks[group, slot] a table's entries.
    `sampled` says whether the device holds the slot's last token. parameters: how a slot is sampled; penalised, biased,
    min_tokens: whether its tokens count, its logits are added to, its ends come too early. stashes: what is on the host.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.epoch = 0
        self.number = 0
        self.alive = False
        slots = shape.max_slots
        self.occupants: list[Occupant | None] = [None] * slots
        self.tokens = np.zeros((slots, shape.max_model_tokens + 1), np.int32)
        self.tables = [np.zeros((slots, shape.table_width(group)), np.int32) for group in range(len(shape.groups))]
        self.known = np.zeros(slots, np.int64)
        self.total = np.zeros(slots, np.int64)
        self.prompt = np.zeros(slots, np.int64)
        self.blocks = np.zeros((len(shape.groups), slots), np.int64)
        self.sampled = np.zeros(slots, np.bool_)
        self.parameters = np.zeros(slots, PARAMETERS)
        self.penalised = np.zeros(slots, np.bool_)
        self.biased = np.zeros(slots, np.bool_)
        self.min_tokens = np.zeros(slots, np.int64)
        self.stashes = Stashes()
        self.departures = Departures()

    def rest(self) -> None:
        """End the epoch, with everything where it is: no step is under way, what was awaited will not come."""
        self.alive = False
        self.total[:] = self.known

    def clear(self) -> None:
        """Empty every slot and end the epoch; only a plan numbered 1 is accepted next."""
        self.alive = False
        self.departures.clear()
        self.occupants = [None] * self.shape.max_slots
        self.known[:] = 0
        self.total[:] = 0
        self.blocks[:] = 0
        self.sampled[:] = False

    def used(self) -> int:
        """How many slots are filled."""
        return sum(occupant is not None for occupant in self.occupants)

    def belongs(self, plan: StepPlan) -> bool:
        """Whether a plan opens an epoch or is of the living one; others are discarded unanswered."""
        return plan.number == 1 or (self.alive and plan.epoch == self.epoch)

    def apply(self, plan: StepPlan) -> None:
        """Take a plan's changes of slots and tables, but not its slices. Raises IllegalPlanError."""
        if plan.number == 1:
            self.clear()
            self.epoch, self.number, self.alive = plan.epoch, 0, True
        if plan.number != self.number + 1:
            raise IllegalPlanError(f"plan {plan.number} of epoch {plan.epoch} follows plan {self.number}")
        self._check_copies(plan)
        self.number = plan.number
        self.stashes.overwrite(plan.swap_out)
        for stash in plan.stash:
            self._stash(stash)
        for slot in plan.release:
            self._release(slot)
        for fill in plan.fill:
            self._fill(fill)
        for grow in plan.grow:
            self._grow(grow)
        for replace in plan.replace:
            self._replace(replace)

    def _release(self, slot: int) -> None:
        occupant = self.occupants[slot] if 0 <= slot < self.shape.max_slots else None
        if occupant is None:
            raise IllegalPlanError(f"slot {slot} is released but not filled")
        ids, prompt = self.tokens[slot, : self.known[slot]].tolist(), int(self.prompt[slot])
        self.departures.add(Departure(occupant, ids, prompt, self.number))
        self.occupants[slot] = None

    def record(self, slot: int, occupant: Occupant, token: int) -> None:
        """Note the value of a slot's oldest pending token; if the slot has another occupant by now, with its own."""
        if self.occupants[slot] is occupant:
            self.tokens[slot, self.known[slot]] = token
            self.known[slot] += 1
        else:
            occupant.late.append(token)

    def _stash(self, stash: Stash) -> None:
        slot = stash.slot
        occupant = self.occupants[slot] if 0 <= slot < self.shape.max_slots else None
        if occupant is None:
            raise IllegalPlanError(f"slot {slot} is swapped out but not filled")
        if len(stash.blocks) != len(self.shape.groups) or not 0 < stash.length <= self.total[slot]:
            raise IllegalPlanError(f"slot {slot} is swapped out with tables that are not its own")
        ids = self.tokens[slot, : self.known[slot]].tolist()
        self.stashes.add(Stashed(occupant, ids, int(self.prompt[slot]), stash))

    def _fill(self, fill: Fill) -> None:
        slot, count = fill.slot, len(fill.prompt_ids) + len(fill.output_ids)
        if not 0 <= slot < self.shape.max_slots or self.occupants[slot] is not None:
            raise IllegalPlanError(f"slot {slot} is filled but not free")
        if not 0 < count <= self.shape.max_model_tokens or not fill.prompt_ids:
            raise IllegalPlanError(f"{count} tokens do not fit a context of {self.shape.max_model_tokens}")
        if len(fill.blocks) != len(self.shape.groups):
            raise IllegalPlanError(
                f"{len(fill.blocks)} block tables, but the model has {len(self.shape.groups)} groups"
            )
        ids = np.array(fill.prompt_ids + fill.output_ids, np.int64)
        if ids.min() < 0 or ids.max() >= self.shape.vocabulary:
            raise IllegalPlanError(f"slot {slot} holds token ids outside the vocabulary")
        if any(not 0 <= end < self.shape.vocabulary for end in fill.end_ids):
            raise IllegalPlanError(f"slot {slot} ends at token ids outside the vocabulary")
        self._take_sampling(fill)
        self.stashes.drop(fill.stream)
        self.tokens[slot, :count] = ids
        self.known[slot] = self.total[slot] = count
        self.prompt[slot] = len(fill.prompt_ids)
        self.blocks[:, slot] = 0
        self.sampled[slot] = False
        for group, blocks in enumerate(fill.blocks):
            self._grow(Grow(slot, group, blocks))

    def _take_sampling(self, fill: Fill) -> None:
        slot, sampling = fill.slot, fill.sampling
        if any(not 0 <= token < self.shape.vocabulary for token, _ in sampling.logit_bias):
            raise IllegalPlanError(f"slot {slot} has a bias for token ids outside the vocabulary")
        self.occupants[slot] = Occupant(
            fill.stream,
            fill.attempt,
            sampling,
            fill.end_ids,
            np.array([token for token, _ in sampling.logit_bias], np.int32),
            np.array([value for _, value in sampling.logit_bias], np.float32),
            fill.cached,
        )
        self.parameters[slot] = record(sampling, self.shape.vocabulary)
        self.penalised[slot] = (
            sampling.presence_penalty != 0 or sampling.frequency_penalty != 0 or sampling.repetition_penalty != 1
        )
        self.biased[slot] = bool(sampling.logit_bias)
        self.min_tokens[slot] = sampling.min_tokens

    def _grow(self, grow: Grow) -> None:
        slot = grow.slot
        if not 0 <= slot < self.shape.max_slots or self.occupants[slot] is None:
            raise IllegalPlanError(f"slot {slot} grows but is not filled")
        self._check_blocks(grow.group, grow.blocks)
        table, first = self.tables[grow.group], int(self.blocks[grow.group, slot])
        if first + len(grow.blocks) > table.shape[1]:
            raise IllegalPlanError(f"slot {slot} has more blocks than its context can use")
        table[slot, first : first + len(grow.blocks)] = grow.blocks
        self.blocks[grow.group, slot] += len(grow.blocks)

    def _replace(self, replace: Replace) -> None:
        slot = replace.slot
        if not 0 <= slot < self.shape.max_slots or self.occupants[slot] is None:
            raise IllegalPlanError(f"slot {slot} has a block replaced but is not filled")
        self._check_blocks(replace.group, (replace.block,))
        if not 0 <= replace.index < self.blocks[replace.group, slot]:
            raise IllegalPlanError(f"slot {slot} has no block {replace.index} to replace")
        self.tables[replace.group][slot, replace.index] = replace.block

    def _check_copies(self, plan: StepPlan) -> None:
        for copy in plan.swap_out:
            self._check_blocks(copy.group, (copy.source,))
            self._check_host_block(copy.group, copy.target)
        for copy in plan.copies:
            self._check_blocks(copy.group, (copy.source, copy.target))
        for copy in plan.swap_in:
            self._check_host_block(copy.group, copy.source)
            self._check_blocks(copy.group, (copy.target,))

    def _check_blocks(self, group: int, blocks: tuple[int, ...]) -> None:
        self._check_group(group)
        tiles = self.shape.groups[group].blocks_per_chunk
        least, end = RESERVED_CHUNKS * tiles, self.shape.num_blocks * tiles
        if blocks and not (least <= min(blocks) and max(blocks) < end):
            raise IllegalPlanError(f"a block of group {group} lies outside {least} … {end - 1}")

    def _check_host_block(self, group: int, block: int) -> None:
        self._check_group(group)
        if not 0 <= block < self.shape.host_slots * self.shape.groups[group].blocks_per_chunk:
            raise IllegalPlanError(f"host block {block} of group {group} does not exist")

    def _check_group(self, group: int) -> None:
        if not 0 <= group < len(self.shape.groups):
            raise IllegalPlanError(f"group {group} does not exist")
