"""Who may touch which block, as seen at the receipt of plans.

A slot's blocks are its own, or shared: a block may stand in several tables only at positions that their slots read and
never write. No chunk serves two groups, and no block changes hands while a step in flight still touches it.
"""

from collections import Counter

from fakes.rules import require

from noria.proto.execution import Copy, Geometry, Slice, StepPlan

_Block = tuple[int, int]  # group, block


class Ownership:
    """Block tables by slot as the last plan leaves them, and what each step in flight reads and writes."""

    def __init__(self, geometry: Geometry) -> None:
        self._geometry = geometry
        self._tables: dict[int, list[list[int]]] = {}
        self._reads: dict[int, set[_Block]] = {}
        self._writes: dict[int, set[_Block]] = {}
        self._uses: Counter[_Block] = Counter()
        self._chunks: dict[int, Counter[int]] = {}

    def track(self, plan: StepPlan) -> None:
        """Apply a plan to the tables and check what it writes."""
        for slot in plan.release:
            for group, table in enumerate(self._tables.pop(slot, [])):
                for block in table:
                    self._drop((group, block))
        self._check_swaps(plan)
        for fill in plan.fill:
            require(fill.slot not in self._tables, "only an empty slot is filled")
            self._tables[fill.slot] = [list(table) for table in fill.blocks]
            for group, table in enumerate(fill.blocks):
                for block in table:
                    self._hand((group, block))
        for grow in plan.grow:
            self._tables[grow.slot][grow.group] += grow.blocks
            for block in grow.blocks:
                self._hand((grow.group, block))
        for each in plan.replace:
            table = self._tables[each.slot][each.group]
            self._drop((each.group, table[each.index]))
            table[each.index] = each.block
            self._hand((each.group, each.block))
        self._check_chunks()
        written = [(slot, block) for each in plan.slices for slot, block in self._written(each)]
        for _, block in written:
            require(self._uses[block] == 1, f"block {block} is written and has one owner")
        fresh = {block for _, block in written} | {(each.group, each.target) for each in (*plan.swap_in, *plan.copies)}
        self._check_fresh(plan, fresh)
        self._writes[plan.number] = {block for _, block in written}
        self._reads[plan.number] = {
            (group, block)
            for each in plan.slices
            for group, table in enumerate(self._tables[each.slot])
            for block in table
        }

    def done(self, number: int) -> None:
        """A step is over."""
        del self._reads[number], self._writes[number]

    def _check_fresh(self, plan: StepPlan, fresh: set[_Block]) -> None:
        """What this plan writes, no step in flight may touch for another slot."""
        own = {
            (group, block)
            for slot, tables in self._tables.items()
            if slot not in {fill.slot for fill in plan.fill}
            for group, table in enumerate(tables)
            for block in table
        }
        for number, reads in self._reads.items():
            clash = (fresh - own) & (reads | self._writes[number])
            require(not clash, f"blocks {clash} are handed on while a step in flight uses them")

    def _check_swaps(self, plan: StepPlan) -> None:
        copies: tuple[tuple[Copy, ...], ...] = (plan.swap_out, plan.copies, plan.swap_in)
        for each in copies:
            targets = [(copy.group, copy.target) for copy in each]
            require(len(targets) == len(set(targets)), "a block is copied to once")
        host = [(copy.group, copy.target) for copy in plan.swap_out]
        host += [(copy.group, copy.source) for copy in plan.swap_in]
        for group, block in host:
            chunk = block // self._geometry.groups[group].blocks_per_chunk
            require(0 <= chunk < self._geometry.host_slots, "a block of the host pool")
        for copy in plan.copies:
            busy = any((copy.group, copy.target) in reads for reads in self._reads.values())
            require(not busy, "nothing is copied over what a step in flight reads")

    def _written(self, piece: Slice) -> list[tuple[int, _Block]]:
        size, written = self._geometry.page_size, []
        for group, table in enumerate(self._tables[piece.slot]):
            ring = self._geometry.groups[group].ring_pages
            pages = range(piece.start // size, (piece.start + piece.length - 1) // size + 1)
            for page in pages:
                entry = page % ring if ring else page
                require(entry < len(table), "the table covers the slice")
                written.append((piece.slot, (group, table[entry])))
            require(not ring or len(pages) <= ring, "a chunk does not overtake its own tail")
        return written

    def _hand(self, block: _Block) -> None:
        group, number = block
        chunk = number // self._geometry.groups[group].blocks_per_chunk
        require(self._geometry.reserved_blocks <= chunk < self._geometry.num_blocks, "a block in the pool")
        self._uses[block] += 1
        self._chunks.setdefault(chunk, Counter())[group] += 1

    def _drop(self, block: _Block) -> None:
        group, number = block
        self._uses[block] -= 1
        self._chunks[number // self._geometry.groups[group].blocks_per_chunk][group] -= 1

    def _check_chunks(self) -> None:
        for chunk, groups in self._chunks.items():
            require(sum(count > 0 for count in groups.values()) <= 1, f"chunk {chunk} serves one group")
