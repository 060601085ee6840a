"""An executor without a model that keeps a true map of its cache.

Every cell (block, offset) remembers which token of which stream at which position was written there. The next token is
a hash of the prefix as read from those cells, so that any fault in scheduling or in block tables raises here or shows
as a wrong token. It also holds plans to the protocol: numbers, slots, and no block handed on while a step queued
here still touches it.
"""

from collections import deque
from dataclasses import dataclass, field

from msgspec.structs import astuple

from noria.proto.base import Sampling, Stream
from noria.proto.execution import Failure, Fill, Geometry, Group, Sampled, Slice, StepDone, StepFailed, StepPlan

VOCABULARY = 32
EOS = 0


class ProtocolError(AssertionError):
    """The scheduler sent something that an executor could not have computed rightly."""


def geometry(
    *,
    num_blocks: int = 64,
    page_size: int = 4,
    groups: int = 1,
    max_slots: int = 8,
    max_batch_tokens: int = 64,
    max_model_tokens: int = 256,
) -> Geometry:
    """A small executor's geometry; two blocks are reserved."""
    return Geometry(
        model="fake",
        groups=tuple(Group(0, 1) for _ in range(groups)),
        num_blocks=num_blocks,
        reserved_blocks=2,
        page_size=page_size,
        max_slots=max_slots,
        max_batch_tokens=max_batch_tokens,
        max_model_tokens=max_model_tokens,
        vocabulary=VOCABULARY,
        dtype="none",
        device="none",
    )


def next_token(prefix: list[int], outputs: int, sampling: Sampling) -> int:
    """The token that follows a prefix; end of sequence sometimes, but not before `min_tokens`."""
    state = sampling.seed or 0
    for token in prefix:
        state = ((state ^ (token + 1)) * 0x9E3779B97F4A7C15 + 0x632BE5AB) & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 29
    if state % 23 == 0 and outputs >= sampling.min_tokens:
        return EOS
    return 1 + (state >> 8) % (VOCABULARY - 1)


def alone(prompt: tuple[int, ...], sampling: Sampling, end_ids: tuple[int, ...], limit: int) -> list[int]:
    """What a stream generates when it is computed alone."""
    output: list[int] = []
    while len(output) < limit:
        output.append(next_token([*prompt, *output], len(output), sampling))
        if output[-1] in end_ids and len(output) >= sampling.min_tokens:
            break
    return output


@dataclass(slots=True)
class _Slot:
    fill: Fill
    ids: list[int]
    tables: list[list[int]]
    carried: int | None = None
    outputs: int = 0


@dataclass(slots=True)
class FakeExecutor:
    """Takes plans with `send`, computes the oldest with `step`."""

    geometry: Geometry
    epoch: int = 0
    number: int = 0
    queued: deque[StepPlan] = field(default_factory=deque)
    computed: int = 0
    # What the last sent plan leaves in the slots, for checks on receipt; and what the lane has computed so far.
    _sent: dict[int, tuple[Stream, list[int]]] = field(default_factory=dict)
    _touched: dict[int, set[tuple[Stream, int]]] = field(default_factory=dict)
    _slots: dict[int, _Slot] = field(default_factory=dict)
    _cells: dict[tuple[int, int], tuple[int, Stream, int, int]] = field(default_factory=dict)

    @property
    def slots(self) -> int:
        """How many slots are filled."""
        return len(self._slots)

    def send(self, plan: StepPlan) -> None:
        """Queue a plan. Raises ProtocolError when it breaks the protocol."""
        if plan.number == 1:
            self._require(plan.epoch > self.epoch, "an epoch is opened once")
            self._require(not self.queued, "an epoch is opened while steps of another are queued")
            self.epoch, self.number = plan.epoch, 0
            self._sent.clear()
            self._slots.clear()
            self._cells.clear()
            self._touched.clear()
        self._require(plan.epoch == self.epoch and plan.number == self.number + 1, "plans come in order")
        self.number = plan.number
        self._check_budgets(plan)
        self._track(plan)
        self.queued.append(plan)

    def step(self, compute_us: int = 100) -> StepDone:
        """Compute the oldest queued plan."""
        plan = self.queued.popleft()
        for slot in plan.release:
            self._require(slot in self._slots, "only a filled slot is released")
            del self._slots[slot]
        for fill in plan.fill:
            self._require(fill.slot not in self._slots, "only an empty slot is filled")
            ids = [*fill.prompt_ids, *fill.output_ids]
            self._slots[fill.slot] = _Slot(
                fill, ids, [list(table) for table in fill.blocks], None, len(fill.output_ids)
            )
        for slot, group, blocks in map(astuple, plan.grow):
            self._slots[slot].tables[group].extend(blocks)
        sampled = [result for each in plan.slices if (result := self._compute(each)) is not None]
        self._touched.pop(plan.number)
        self.computed += 1
        return StepDone(plan.epoch, plan.number, tuple(sampled), compute_us)

    def fail(self, failure: Failure, detail: str = "injected") -> StepFailed:
        """Fail the oldest queued plan and discard the later ones."""
        plan = self.queued.popleft()
        self.queued.clear()
        return StepFailed(plan.epoch, plan.number, failure, detail)

    def _check_budgets(self, plan: StepPlan) -> None:
        slots = [each.slot for each in plan.slices]
        self._require(len(slots) == len(set(slots)), "one slice for a slot")
        self._require(sum(each.length for each in plan.slices) <= self.geometry.max_batch_tokens, "token budget")
        self._require(all(0 <= slot < self.geometry.max_slots for slot in slots), "slots within bounds")

    def _track(self, plan: StepPlan) -> None:
        """Check at receipt that no block changes hands while a queued step touches it."""
        for slot in plan.release:
            self._sent.pop(slot, None)
        handed: list[tuple[int, tuple[int, ...]]] = []
        for fill in plan.fill:
            self._sent[fill.slot] = (fill.stream, [])
            handed += [(fill.slot, table) for table in fill.blocks]
        handed += [(each.slot, each.blocks) for each in plan.grow]
        busy = {block: stream for touched in self._touched.values() for stream, block in touched}
        for slot, blocks in handed:
            stream, held = self._sent[slot]
            for block in blocks:
                self._require(self.geometry.reserved_blocks <= block < self.geometry.num_blocks, "a block in the pool")
                self._require(block not in busy, f"block {block} handed to {stream} while a step in flight uses it")
            held.extend(blocks)
        owned = [block for _, held in self._sent.values() for block in held]
        self._require(len(owned) == len(set(owned)), "a block has one owner")
        self._touched[plan.number] = {
            (stream, block) for each in plan.slices for stream, held in [self._sent[each.slot]] for block in held
        }

    def _compute(self, piece: Slice) -> Sampled | None:
        slot = self._slots[piece.slot]
        end = piece.start + piece.length
        if piece.carry:
            self._require(piece.length == 1 and slot.carried is not None, "carry needs a sampled token")
            assert slot.carried is not None
            tokens = [slot.carried]
        else:
            tokens = slot.ids[piece.start : end]
            self._require(len(tokens) == piece.length, "the ids of a slice are known")
        for group, table in enumerate(slot.tables):
            self._require(len(table) * self.geometry.page_size >= end, "the table covers the slice")
            for position, token in enumerate(tokens, piece.start):
                self._cells[self._cell(table, position)] = (group, slot.fill.stream, position, token)
        prefixes = [self._read(group, slot, end) for group in range(len(slot.tables))]
        self._require(all(prefix == prefixes[0] for prefix in prefixes), "groups agree")
        if not piece.sample:
            return None
        token = next_token(prefixes[0], slot.outputs, slot.fill.sampling)
        slot.carried = token
        slot.outputs += 1
        return Sampled(slot.fill.stream, slot.fill.attempt, slot.outputs - 1, (token,))

    def _read(self, group: int, slot: _Slot, end: int) -> list[int]:
        prefix = []
        for position in range(end):
            cell = self._cells.get(self._cell(slot.tables[group], position))
            self._require(
                cell is not None and cell[:3] == (group, slot.fill.stream, position),
                f"position {position} of {slot.fill.stream} is in its block",
            )
            assert cell is not None
            prefix.append(cell[3])
        return prefix

    def _cell(self, table: list[int], position: int) -> tuple[int, int]:
        block, offset = divmod(position, self.geometry.page_size)
        return table[block], offset

    @staticmethod
    def _require(condition: bool, rule: str) -> None:
        if not condition:
            raise ProtocolError(rule)
