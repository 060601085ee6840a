"""Plans become arrays, and what breaks the protocol is refused."""

from typing import Any

import msgspec
import numpy as np
import pytest
from fakes.sampling import drawn

from noria.proto.base import Stream
from noria.proto.execution import Copy, Fill, Group, Grow, Replace, Sampled, Slice, StepPlan
from noria.proto.sampling import Sampling
from noria.services.executor.plan.attention_spans import AttentionReads, attention_reads
from noria.services.executor.plan.batch import Batch
from noria.services.executor.plan.batch_builder import prepare, results
from noria.services.executor.plan.limits import ExecutorLimits
from noria.services.executor.plan.sampling_metadata import RecentTokens
from noria.services.executor.plan.slot_table import IllegalPlanError, SlotTable

SHAPE = ExecutorLimits(
    max_slots=4, max_batch_tokens=600, max_model_tokens=1000, page_size=16, num_chunks=200, vocabulary=50
)


def fill(slot: int, prompt: int, blocks: int, *, outputs: int = 0, first: int = 2, **sampling: Any) -> Fill:
    return Fill(
        slot=slot,
        stream=Stream(slot + 10, 0),
        attempt=0,
        prompt_ids=tuple(i % 50 for i in range(prompt)),
        output_ids=tuple(range(outputs)),
        sampling=Sampling(**sampling),
        end_ids=(7,),
        blocks=(tuple(range(first, first + blocks)),),
    )


def opened(*fills: Fill, slices: tuple[Slice, ...] = ()) -> tuple[SlotTable, Batch]:
    slots = SlotTable(SHAPE)
    return slots, prepare(slots, StepPlan(1, 1, slices, fill=fills))


def read(batch: Batch, shape: ExecutorLimits = SHAPE, group: int = 0) -> AttentionReads:
    return attention_reads(shape, batch.slices, batch.pages[group])


def test_slices_lie_one_after_the_other_with_their_cache_places() -> None:
    _, batch = opened(
        fill(0, 5, 1, first=9), fill(2, 20, 2), slices=(Slice(2, 14, 4, False, False), Slice(0, 0, 5, False, True))
    )
    assert batch.token_ids.tolist() == [14, 15, 16, 17, 0, 1, 2, 3, 4]
    assert batch.positions.tolist() == [14, 15, 16, 17, 0, 1, 2, 3, 4]
    assert batch.pages[0].write_slots.tolist() == [2 * 16 + 14, 2 * 16 + 15, 3 * 16, 3 * 16 + 1, *range(144, 149)]
    assert [(span.row, span.length, span.start) for span in read(batch).spans] == [(0, 4, 14), (4, 5, 0)]
    assert batch.sampler is not None and batch.sampler.rows.tolist() == [8]
    assert batch.sampler.positions.tolist() == [5]
    assert read(batch).singles is None


def test_a_decode_carries_the_token_of_a_step_in_flight() -> None:
    slots, first = opened(fill(1, 3, 1), slices=(Slice(1, 0, 3, False, True),))
    second = prepare(slots, StepPlan(1, 2, (Slice(1, 3, 1, True, True),)))
    assert (second.carry_rows.tolist(), second.carry_slots.tolist()) == ([0], [1])
    assert [product.start for product in (*first.sampled_rows, *second.sampled_rows)] == [0, 1]
    assert results(slots, first, drawn([41]))[0].ids == (41,)
    assert results(slots, second, drawn([42]))[0] == Sampled(Stream(11, 0), 0, 1, (42,))
    third = prepare(slots, StepPlan(1, 3, (Slice(1, 4, 1, False, True),)))
    assert third.token_ids.tolist() == [42]


def test_single_slices_are_cut_into_chunks_longest_first() -> None:
    slots, batch = opened(
        fill(0, 100, 7),
        fill(1, 600, 38, first=50),
        slices=(Slice(0, 99, 1, False, True), Slice(1, 599, 1, False, True)),
    )
    singles = read(batch).singles
    assert singles is not None
    assert singles.rows.tolist() == [1, 0]
    assert singles.counts == (2, 1, 1)
    assert singles.ends.tolist() == [256, 100, 256, 88]
    assert singles.pages[1].tolist() == [*range(2, 9), *[0] * 9]
    assert singles.pages[3].tolist() == [*range(82, 88), *[0] * 10]
    del slots


def test_pages_of_a_former_occupant_are_not_read() -> None:
    slots, _ = opened(fill(0, 300, 19, first=100))
    batch = prepare(slots, StepPlan(1, 2, (Slice(0, 0, 1, False, False),), release=(0,), fill=(fill(0, 2, 1),)))
    assert read(batch).singles is not None
    assert read(batch).singles.pages.tolist() == [[2, *[0] * 15]]


def test_end_ids_are_masked_until_min_tokens_are_out() -> None:
    one, other = fill(0, 4, 1, outputs=2, min_tokens=3), fill(1, 4, 1, outputs=3, min_tokens=3)
    _, batch = opened(one, other, slices=(Slice(0, 5, 1, False, True), Slice(1, 6, 1, False, True)))
    assert batch.sampler is not None
    assert (batch.sampler.bias_ids.tolist(), batch.sampler.bias_starts.tolist()) == ([7], [0, 1, 1])
    assert batch.sampler.bias_values.tolist() == [-np.inf]
    assert [product.start for product in batch.sampled_rows] == [2, 3]


def test_penalties_count_prompt_and_output_with_the_tokens_still_being_computed() -> None:
    one = fill(0, 4, 1, outputs=2, repetition_penalty=1.5)
    other = fill(1, 3, 1, outputs=2, presence_penalty=0.5)
    slots, first = opened(one, other, slices=(Slice(0, 5, 1, False, True), Slice(1, 4, 1, False, True)))
    assert first.sampler is not None
    assert first.sampler.history.tolist() == [0, 1, 2, 3, 0, 1, 0, 1]  # of the other one, output alone counts
    assert (first.sampler.history_starts.tolist(), first.sampler.prompts.tolist()) == ([0, 6, 8], [4, 0])
    second = prepare(slots, StepPlan(1, 2, (Slice(1, 5, 1, True, True), Slice(0, 6, 1, True, True))))
    assert second.sampler is not None
    recent = RecentTokens(SHAPE.max_slots)
    recent.complete(first.sampler)
    recent.note(first.sampler, np.array([40, 41]))
    recent.complete(second.sampler)
    assert second.sampler.history.tolist() == [0, 1, 41, 0, 1, 2, 3, 0, 1, 40]
    results(slots, first, drawn([40, 41]))
    third = prepare(slots, StepPlan(1, 3, (Slice(0, 7, 1, True, True),)))
    assert third.sampler is not None
    recent.note(second.sampler, np.array([43, 42]))
    recent.complete(third.sampler)
    assert third.sampler.history.tolist() == [0, 1, 2, 3, 0, 1, 40, 42]


def test_a_logit_bias_is_laid_out_before_the_bans() -> None:
    one = fill(1, 4, 1, outputs=0, min_tokens=3, logit_bias=((9, 2.5), (3, -1.0)))
    _, batch = opened(fill(0, 4, 1), one, slices=(Slice(0, 0, 4, False, True), Slice(1, 0, 4, False, True)))
    assert batch.sampler is not None
    assert (batch.sampler.bias_ids.tolist(), batch.sampler.bias_starts.tolist()) == ([9, 3, 7], [0, 0, 3])
    assert batch.sampler.bias_values.tolist() == [2.5, -1.0, -np.inf]


def test_a_result_for_a_slot_with_another_occupant_is_told_but_not_kept() -> None:
    slots, batch = opened(fill(0, 3, 1), slices=(Slice(0, 0, 3, False, True),))
    prepare(slots, StepPlan(1, 2, (), release=(0,), fill=(fill(0, 2, 1),)))
    assert results(slots, batch, drawn([9]))[0].ids == (9,)
    assert slots.known[0] == 2


def test_number_one_opens_an_epoch_with_empty_slots() -> None:
    slots, _ = opened(fill(0, 3, 1))
    prepare(slots, StepPlan(2, 1, ()))
    assert slots.used() == 0
    assert not slots.belongs(StepPlan(1, 2, ()))


ONE = Slice(0, 0, 3, False, True)
ILLEGAL = [
    ("number skipped", {"number": 3}),
    ("release of an empty slot", {"release": (1,)}),
    ("fill of a full slot", {"fill": (fill(0, 3, 1),)}),
    ("slot beyond the last", {"fill": (fill(4, 3, 1),)}),
    ("reserved block", {"fill": (fill(1, 3, 1, first=1),)}),
    ("block beyond the pool", {"grow": (Grow(0, 0, (200,)),)}),
    ("unknown group", {"grow": (Grow(0, 1, (5,)),)}),
    ("growth of an empty slot", {"grow": (Grow(3, 0, (5,)),)}),
    ("more blocks than the context", {"grow": (Grow(0, 0, tuple(range(2, 80))),)}),
    ("id out of vocabulary", {"fill": (msgspec.structs.replace(fill(1, 3, 1), prompt_ids=(50,)),)}),
    ("negative id", {"fill": (msgspec.structs.replace(fill(1, 3, 1), output_ids=(-1,)),)}),
    ("bias out of vocabulary", {"fill": (fill(1, 3, 1, logit_bias=((50, 1.0),)),)}),
    ("no prompt", {"fill": (msgspec.structs.replace(fill(1, 3, 1), prompt_ids=()),)}),
    ("too long", {"fill": (fill(1, 1001, 63),)}),
    ("two tables", {"fill": (msgspec.structs.replace(fill(1, 3, 1), blocks=((5,), (6,))),)}),
    ("slice of an empty slot", {"slices": (Slice(1, 0, 1, False, False),)}),
    ("slice of no slot", {"slices": (Slice(-1, 0, 1, False, False),)}),
    ("two slices of a slot", {"slices": (Slice(0, 0, 1, False, False), Slice(0, 1, 1, False, False))}),
    ("empty slice", {"slices": (Slice(0, 0, 0, False, False),)}),
    ("negative start", {"slices": (Slice(0, -1, 2, False, False),)}),
    ("beyond the tokens", {"slices": (Slice(0, 0, 4, False, False),)}),
    ("beyond the blocks", {"fill": (fill(1, 40, 2),), "slices": (Slice(1, 0, 40, False, False),)}),
    ("sampling before the last token", {"slices": (Slice(0, 0, 2, False, True),)}),
    ("nothing to carry", {"slices": (Slice(0, 2, 1, True, True),)}),
    ("too many tokens", {"fill": (fill(1, 700, 44),), "slices": (Slice(1, 0, 601, False, False),)}),
    ("swap without a host pool", {"swap_out": (Copy(0, 2, 0),)}),
    ("swap from a host block that is not there", {"swap_in": (Copy(0, 0, 2),)}),
    ("a replaced entry that is not there", {"replace": (Replace(0, 0, 1, 5),)}),
    ("a replacement by a reserved block", {"replace": (Replace(0, 0, 0, 1),)}),
    ("a replacement in an empty slot", {"replace": (Replace(1, 0, 0, 5),)}),
    ("copy onto a reserved block", {"copies": (Copy(0, 2, 0),)}),
]


@pytest.mark.parametrize(("change"), [change for _, change in ILLEGAL], ids=[name for name, _ in ILLEGAL])
def test_an_illegal_plan_is_refused_and_its_epoch_is_dead(change: dict[str, Any]) -> None:
    slots, _ = opened(fill(0, 3, 1))
    plan = StepPlan(**{"epoch": 1, "number": 2, "slices": (), **change})
    with pytest.raises(IllegalPlanError):
        prepare(slots, plan)
    assert not slots.belongs(StepPlan(1, plan.number + 1, (ONE,)))
    assert slots.belongs(StepPlan(2, 1, ()))
    assert slots.used() == 0


def test_a_token_not_known_yet_must_be_carried() -> None:
    slots, _ = opened(fill(0, 3, 1), slices=(ONE,))
    with pytest.raises(IllegalPlanError, match="not known"):
        prepare(slots, StepPlan(1, 2, (Slice(0, 3, 1, False, True),)))


def test_arrays_of_a_step_do_not_change_when_the_next_is_prepared() -> None:
    slots, batch = opened(fill(0, 3, 1), slices=(ONE,))
    before = batch.token_ids.copy()
    prepare(slots, StepPlan(1, 2, (), release=(0,), fill=(msgspec.structs.replace(fill(0, 3, 1), prompt_ids=(9, 9)),)))
    assert np.array_equal(batch.token_ids, before)


# Two full layers and one that sees 20 tokens; a chunk is one full block, or two sliding ones.
HYBRID = ExecutorLimits(
    max_slots=2,
    max_batch_tokens=30,
    max_model_tokens=600,
    page_size=8,
    num_chunks=40,
    vocabulary=50,
    groups=(Group(0, 2, 1, 0), Group(20, 1, 2, 8)),
    num_host_chunks=3,
)


def hybrid(*slices: Slice, prompt: int, **changes: Any) -> Batch:
    ids = tuple(i % 50 for i in range(prompt))
    full = tuple(range(2, 2 + -(-prompt // 8)))
    ring = tuple(range(40, 40 + min(8, len(full))))
    filled = Fill(0, Stream(1, 0), 0, ids, (), Sampling(), (), (full, ring))
    return prepare(SlotTable(HYBRID), StepPlan(1, 1, slices, fill=(filled,), **changes))


def row(sliding_block: int) -> int:
    """The row of a sliding block: those of one part of all 40 chunks lie together."""
    return sliding_block // 2 + sliding_block % 2 * 40


def test_a_sliding_group_writes_into_its_ring() -> None:
    batch = hybrid(Slice(0, 62, 4, False, False), prompt=90)
    full, sliding = batch.pages
    assert full.write_slots.tolist() == [(2 + 7) * 8 + 6, (2 + 7) * 8 + 7, (2 + 8) * 8, (2 + 8) * 8 + 1]
    assert sliding.write_slots.tolist() == [row(47) * 8 + 6, row(47) * 8 + 7, row(40) * 8, row(40) * 8 + 1]


def test_a_single_query_reads_the_pages_of_its_window_only() -> None:
    batch = hybrid(Slice(0, 269, 1, False, False), prompt=280)
    full, sliding = (read(batch, HYBRID, group).singles for group in (0, 1))
    assert full is not None and sliding is not None
    assert full.counts == (1, 1)
    # It sees 250 … 269: pages 31 (the last of the first chunk of keys) to 33, in the ring's places 7, 0 and 1.
    assert sliding.counts == (1, 1)
    assert sliding.pages.tolist() == [[0] * 31 + [row(47)], [row(40), row(41)] + [0] * 30]
    assert (sliding.firsts.tolist(), sliding.ends.tolist()) == ([250, 0], [256, 14])


def test_a_span_reads_the_pages_of_all_its_windows() -> None:
    (span,) = read(hybrid(Slice(0, 280, 10, False, False), prompt=300), HYBRID, 1).spans
    # Its tokens see 261 … 289: pages 32 to 36.
    assert (span.level, span.pages.tolist()) == (1, [[*(row(block) for block in range(40, 45)), *[0] * 27]])


def test_tables_that_end_before_the_ring_does_are_too_short() -> None:
    with pytest.raises(IllegalPlanError, match="beyond its blocks"):
        prepare(
            SlotTable(HYBRID),
            StepPlan(
                1,
                1,
                (Slice(0, 0, 30, False, False),),
                fill=(Fill(0, Stream(1, 0), 0, tuple(range(30)), (), Sampling(), (), ((2, 3, 4, 5), (4, 5, 6))),),
            ),
        )


def test_blocks_of_a_group_are_counted_in_its_own_size() -> None:
    swaps = {"swap_out": (Copy(1, 79, 5),), "swap_in": (Copy(0, 2, 39),)}
    batch = hybrid(prompt=10, **swaps)
    assert (batch.swap_out, batch.swap_in) == (swaps["swap_out"], swaps["swap_in"])
    for wrong in (Copy(1, 80, 5), Copy(1, 3, 5), Copy(1, 79, 6), Copy(0, 5, 3)):
        with pytest.raises(IllegalPlanError):
            hybrid(prompt=10, swap_out=(wrong,))


def test_a_replaced_block_is_read_from_then_on() -> None:
    batch = hybrid(Slice(0, 9, 1, False, False), prompt=10, replace=(Replace(0, 0, 0, 30), Replace(0, 1, 1, 9)))
    assert read(batch, HYBRID).singles is not None
    assert read(batch, HYBRID).singles.pages[0, :2].tolist() == [30, 3]
    assert batch.pages[1].write_slots.tolist() == [row(9) * 8 + 1]
