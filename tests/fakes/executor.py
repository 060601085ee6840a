"""An executor without a model that keeps a true map of its cache.

Every cell (group, block, offset) remembers the token that was written there, its position, and a hash of the whole
prefix up to it: what keys and values depend on. A step reads every position that its attention would read, from the
cells its tables name, so that any fault in scheduling, sharing, recycling or copying raises here or shows as a wrong
token. It also holds plans to the protocol: numbers, slots, and no block handed on while a step queued here still
touches it.
"""

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from fakes.ownership import Ownership
from fakes.rules import ProtocolError, require

from noria.proto.base import Stream, TokenLogprob
from noria.proto.execution import (
    Copy,
    Failure,
    Fill,
    Geometry,
    Group,
    Held,
    Inventory,
    Sampled,
    Slice,
    Stash,
    StepDone,
    StepFailed,
    StepPlan,
    cache_digest,
)
from noria.proto.sampling import Sampling

__all__ = [
    "EOS",
    "VOCABULARY",
    "FakeExecutor",
    "ProtocolError",
    "Slot",
    "alone",
    "geometry",
    "hybrid",
    "likelihoods",
    "next_token",
]

VOCABULARY = 32
EOS = 0
_MASK = 0xFFFFFFFFFFFFFFFF


def likelihoods(ids: Iterable[int]) -> tuple[TokenLogprob, ...]:
    """What is told of ids to those who ask: recognisable, and of no meaning."""
    return tuple(TokenLogprob(-float(token), ((token, -float(token)),)) for token in ids)


def geometry(
    *,
    num_blocks: int = 64,
    page_size: int = 4,
    groups: int = 1,
    max_slots: int = 8,
    max_batch_tokens: int = 64,
    max_model_tokens: int = 256,
    host_slots: int = 0,
    kinds: tuple[Group, ...] | None = None,
) -> Geometry:
    """A small executor's geometry; two chunks are reserved. kinds: its groups, else so many of full attention."""
    return Geometry(
        model="fake",
        groups=kinds or tuple(Group(0, 1) for _ in range(groups)),
        num_blocks=num_blocks,
        reserved_blocks=2,
        page_size=page_size,
        max_slots=max_slots,
        max_batch_tokens=max_batch_tokens,
        max_model_tokens=max_model_tokens,
        vocabulary=VOCABULARY,
        dtype="none",
        device="none",
        host_slots=host_slots,
    )


def hybrid(
    window: int, page_size: int, max_batch_tokens: int, per_chunk: tuple[int, int] = (1, 1)
) -> tuple[Group, ...]:
    """A group of full attention and one that looks back a window, cut from a chunk into so many blocks."""
    ring = -(-(window + max_batch_tokens) // page_size) + 1
    return (Group(0, 1, per_chunk[0]), Group(window, per_chunk[0], per_chunk[1], ring))


def _mix(state: int, token: int) -> int:
    state = ((state ^ (token + 1)) * 0x9E3779B97F4A7C15 + 0x632BE5AB) & _MASK
    return state ^ (state >> 29)


def next_token(prefix: Iterable[int], outputs: int, sampling: Sampling) -> int:
    """The token that follows a prefix; end of sequence sometimes, but not before `min_tokens`."""
    state = 0
    for token in prefix:
        state = _mix(state, token)
    return _draw(state, outputs, sampling)


def _draw(state: int, outputs: int, sampling: Sampling) -> int:
    """A token from the state of a prefix; penalties know where the output begins, and how long it is."""
    state = _mix(state, sampling.seed or 0)
    if changed := _changes(sampling):
        state = _mix(_mix(state, changed), outputs)
    if state % 23 == 0 and outputs >= sampling.min_tokens:
        return EOS
    return 1 + (state >> 8) % (VOCABULARY - 1)


def _changes(sampling: Sampling) -> int:
    """What a stream asks to be done to its logits, as a number; 0 for nothing."""
    penalties = (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty - 1.0)
    biases = (token * value for token, value in sampling.logit_bias)
    return int(sum(abs(each) * 64 * place for place, each in enumerate((*penalties, *biases), 1)))


def alone(prompt: tuple[int, ...], sampling: Sampling, end_ids: tuple[int, ...], limit: int) -> list[int]:
    """What a stream generates when it is computed alone."""
    output: list[int] = []
    state = 0
    for token in prompt:
        state = _mix(state, token)
    while len(output) < limit:
        output.append(_draw(state, len(output), sampling))
        state = _mix(state, output[-1])
        if output[-1] in end_ids and len(output) >= sampling.min_tokens:
            break
    return output


_Cell = tuple[int, int, int]  # position, token, state of the prefix that it ends
_Cells = dict[tuple[int, int, int], _Cell]


@dataclass(slots=True)
class Slot:
    """What is in a slot. given: how many ids the slot was filled with. states[p] is the state of the true prefix of p tokens."""

    fill: Fill
    ids: list[int]
    given: int
    tables: list[list[int]]
    cached: int
    states: list[int] = field(default_factory=lambda: [0])
    carried: int | None = None
    outputs: int = 0


@dataclass(slots=True)
class FakeExecutor:
    """Takes plans with `send`, computes the oldest with `step`.

    computations: how often each position of each stream was computed.
    """

    geometry: Geometry
    epoch: int = 0
    number: int = 0
    queued: deque[StepPlan] = field(default_factory=deque)
    computed: int = 0
    computed_tokens: int = 0
    computations: Counter[tuple[Stream, int]] = field(default_factory=Counter)
    _owners: Ownership = field(init=False)
    _slots: dict[int, Slot] = field(default_factory=dict)
    _cells: _Cells = field(default_factory=dict)
    _host: _Cells = field(default_factory=dict)
    _stashed: dict[Stream, tuple[Slot, Stash]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._owners = Ownership(self.geometry)

    @property
    def slots(self) -> int:
        """How many slots are filled."""
        return len(self._slots)

    def slot(self, number: int) -> Slot:
        """What is in a filled slot, as the last computed plan left it."""
        return self._slots[number]

    def place(self, group: int, table: list[int], position: int) -> tuple[int, int]:
        """The block of a table that holds a position, and where in it."""
        _, block, offset = self._at(group, table, position)
        return block, offset

    def touched(self, *plans: StepPlan) -> list[Stream]:
        """The streams that the oldest queued plans compute."""
        occupants = {number: each.fill.stream for number, each in self._slots.items()}
        found: list[Stream] = []
        for plan in plans:
            for slot in plan.release:
                occupants.pop(slot, None)
            occupants |= {each.slot: each.stream for each in plan.fill}
            found += [occupants[each.slot] for each in plan.slices]
        return list(dict.fromkeys(found))

    def send(self, plan: StepPlan) -> None:
        """Queue a plan. Raises ProtocolError when it breaks the protocol."""
        if plan.number == 1:
            require(plan.epoch > self.epoch, "an epoch is opened once")
            require(not self.queued, "an epoch is opened while steps of another are queued")
            self.epoch, self.number = plan.epoch, 0
            self._owners = Ownership(self.geometry)
            self._slots.clear()
        require(plan.epoch == self.epoch and plan.number == self.number + 1, "plans come in order")
        self.number = plan.number
        self._check_budgets(plan)
        self._owners.track(plan)
        self.queued.append(plan)

    def step(self, compute_us: int = 100) -> StepDone:
        """Compute the oldest queued plan."""
        plan = self.queued.popleft()
        self._stash(plan)
        for slot in plan.release:
            require(slot in self._slots, "only a filled slot is released")
            del self._slots[slot]
        self._copy(plan.swap_out, self._cells, self._host)
        self._copy(plan.copies, self._cells, self._cells)
        self._copy(plan.swap_in, self._host, self._cells)
        for fill in plan.fill:
            require(fill.slot not in self._slots, "only an empty slot is filled")
            self._stashed.pop(fill.stream, None)
            ids = [*fill.prompt_ids, *fill.output_ids]
            tables = [list(table) for table in fill.blocks]
            self._slots[fill.slot] = Slot(fill, ids, len(ids), tables, fill.cached, outputs=len(fill.output_ids))
        for grow in plan.grow:
            self._slots[grow.slot].tables[grow.group].extend(grow.blocks)
        for each in plan.replace:
            self._slots[each.slot].tables[each.group][each.index] = each.block
        sampled = [result for each in plan.slices if (result := self._compute(each)) is not None]
        self._owners.done(plan.number)
        self.computed += 1
        self.computed_tokens += sum(each.length for each in plan.slices)
        return StepDone(plan.epoch, plan.number, tuple(sampled), compute_us)

    def fail(self, failure: Failure, detail: str = "injected") -> StepFailed:
        """Fail the oldest queued plan and discard the later ones."""
        plan = self.queued.popleft()
        self.queued.clear()
        return StepFailed(plan.epoch, plan.number, failure, detail)

    def inventory(self) -> Inventory:
        """What it holds, for a scheduler that does not know it; steps that were not begun are thrown away."""
        self.queued.clear()
        held = [
            _held(number, slot, slot.cached, tuple(map(tuple, slot.tables)))
            for number, slot in sorted(self._slots.items())
            if slot.cached
        ]
        held += [_held(-1, slot, stash.length, stash.blocks) for slot, stash in self._stashed.values()]
        return Inventory(self.epoch, tuple(held))

    def _stash(self, plan: StepPlan) -> None:
        """Remember whose cache goes to the host, until it comes back or is overwritten."""
        written = {(copy.group, copy.target) for copy in plan.swap_out}
        for stream, (_, stash) in list(self._stashed.items()):
            if written & {(group, block) for group, blocks in enumerate(stash.blocks) for block in blocks}:
                del self._stashed[stream]
        for stash in plan.stash:
            require(stash.slot in plan.release, "what is kept on the host leaves its slot")
            slot = self._slots[stash.slot]
            require(stash.length == slot.cached, "what is kept on the host was computed")
            self._stashed[slot.fill.stream] = (slot, stash)

    def _check_budgets(self, plan: StepPlan) -> None:
        slots = [each.slot for each in plan.slices]
        require(len(slots) == len(set(slots)), "one slice for a slot")
        require(sum(each.length for each in plan.slices) <= self.geometry.max_batch_tokens, "token budget")
        require(all(0 <= slot < self.geometry.max_slots for slot in slots), "slots within bounds")

    def _copy(self, copies: tuple[Copy, ...], sources: _Cells, targets: _Cells) -> None:
        """All at once: every source is read before any target is written."""
        read = [
            (group, target, offset, sources.get((group, source, offset)))
            for group, source, target in ((each.group, each.source, each.target) for each in copies)
            for offset in range(self.geometry.page_size)
        ]
        for group, target, offset, cell in read:
            if cell is None:
                targets.pop((group, target, offset), None)
            else:
                targets[group, target, offset] = cell

    def _compute(self, piece: Slice) -> Sampled | None:
        slot = self._slots[piece.slot]
        end = piece.start + piece.length
        require(piece.start == slot.cached, "a slice begins where the cache ends")
        slot.cached = end
        if piece.carry:
            require(piece.length == 1 and slot.carried is not None, "carry needs a sampled token")
            require(piece.start == len(slot.ids) - 1, "a carried token stands last")
        else:
            require(end <= slot.given, "the ids of a slice were given")
        for token in slot.ids[len(slot.states) - 1 : end]:
            slot.states.append(_mix(slot.states[-1], token))
        for group, table in enumerate(slot.tables):
            for position in range(piece.start, end):
                self.computations[slot.fill.stream, position] += not group
                cell = (position, slot.ids[position], slot.states[position + 1])
                self._cells[self._at(group, table, position)] = cell
        for group, kind in enumerate(self.geometry.groups):
            self._read(group, slot, max(0, piece.start - kind.window + 1) if kind.window else 0, end)
        if not piece.sample:
            return None
        token = _draw(slot.states[end], slot.outputs, slot.fill.sampling)
        require(end == len(slot.ids), "only what follows all known ids is sampled")
        slot.carried = token
        slot.ids.append(token)
        slot.outputs += 1
        told = likelihoods((token,)) if slot.fill.sampling.logprobs is not None else ()
        return Sampled(slot.fill.stream, slot.fill.attempt, slot.outputs - 1, (token,), told)

    def _read(self, group: int, slot: Slot, start: int, end: int) -> None:
        for position in range(start, end):
            cell = self._cells.get(self._at(group, slot.tables[group], position))
            right = (position, slot.ids[position], slot.states[position + 1])
            require(cell == right, f"position {position} of {slot.fill.stream} is in its block")

    def _at(self, group: int, table: list[int], position: int) -> tuple[int, int, int]:
        page, offset = divmod(position, self.geometry.page_size)
        ring = self.geometry.groups[group].ring_pages
        if ring:
            require(len(table) <= ring, "a ring has no more pages than it may")
            page %= ring
        require(page < len(table), "the table covers the slice")
        return group, table[page], offset


def _held(number: int, slot: Slot, length: int, blocks: tuple[tuple[int, ...], ...]) -> Held:
    output = tuple(slot.ids[len(slot.fill.prompt_ids) :])
    told = likelihoods(output) if slot.fill.sampling.logprobs is not None else ()
    digest = cache_digest(slot.ids[:length])
    return Held(number, slot.fill.stream, slot.fill.attempt, digest, length, blocks, output, told)
