"""Plans become arrays, and what breaks the protocol is refused."""

from typing import Any

import msgspec
import numpy as np
import pytest

from noria.proto.base import Sampling, Stream
from noria.proto.execution import Copy, Fill, Grow, Sampled, Slice, StepPlan
from noria.services.executor.batch import Batch, prepare, results
from noria.services.executor.shape import Shape
from noria.services.executor.slots import IllegalPlanError, Slots

SHAPE = Shape(max_slots=4, max_batch_tokens=600, max_model_tokens=1000, page_size=16, num_blocks=200, vocabulary=50)


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


def opened(*fills: Fill, slices: tuple[Slice, ...] = ()) -> tuple[Slots, Batch]:
    slots = Slots(SHAPE)
    return slots, prepare(slots, StepPlan(1, 1, slices, fill=fills))


def test_slices_lie_one_after_the_other_with_their_cache_places() -> None:
    _, batch = opened(
        fill(0, 5, 1, first=9), fill(2, 20, 2), slices=(Slice(2, 14, 4, False, False), Slice(0, 0, 5, False, True))
    )
    assert batch.token_ids.tolist() == [14, 15, 16, 17, 0, 1, 2, 3, 4]
    assert batch.positions.tolist() == [14, 15, 16, 17, 0, 1, 2, 3, 4]
    assert batch.write_slots.tolist() == [2 * 16 + 14, 2 * 16 + 15, 3 * 16, 3 * 16 + 1, *range(144, 149)]
    assert [(span.row, span.length, span.start) for span in batch.spans] == [(0, 4, 14), (4, 5, 0)]
    assert batch.sampler is not None and batch.sampler.rows.tolist() == [8]
    assert batch.sampler.positions.tolist() == [5]
    assert batch.singles is None


def test_a_decode_carries_the_token_of_a_step_in_flight() -> None:
    slots, first = opened(fill(1, 3, 1), slices=(Slice(1, 0, 3, False, True),))
    second = prepare(slots, StepPlan(1, 2, (Slice(1, 3, 1, True, True),)))
    assert (second.carry_rows.tolist(), second.carry_slots.tolist()) == ([0], [1])
    assert [product.start for product in (*first.products, *second.products)] == [0, 1]
    assert results(slots, first, (41,))[0].ids == (41,)
    assert results(slots, second, (42,))[0] == Sampled(Stream(11, 0), 0, 1, (42,))
    third = prepare(slots, StepPlan(1, 3, (Slice(1, 4, 1, False, True),)))
    assert third.token_ids.tolist() == [42]


def test_single_slices_are_cut_into_chunks_longest_first() -> None:
    slots, batch = opened(
        fill(0, 100, 7),
        fill(1, 600, 38, first=50),
        slices=(Slice(0, 99, 1, False, True), Slice(1, 599, 1, False, True)),
    )
    singles = batch.singles
    assert singles is not None
    assert singles.rows.tolist() == [1, 0]
    assert singles.counts == (2, 1, 1)
    assert singles.lengths.tolist() == [256, 100, 256, 88]
    assert singles.pages[1].tolist() == [*range(2, 9), *[0] * 9]
    assert singles.pages[3].tolist() == [*range(82, 88), *[0] * 10]
    del slots


def test_pages_of_a_former_occupant_are_not_read() -> None:
    slots, _ = opened(fill(0, 300, 19, first=100))
    batch = prepare(slots, StepPlan(1, 2, (Slice(0, 0, 1, False, False),), release=(0,), fill=(fill(0, 2, 1),)))
    assert batch.singles is not None
    assert batch.singles.pages.tolist() == [[2, *[0] * 15]]


def test_end_ids_are_masked_until_min_tokens_are_out() -> None:
    one, other = fill(0, 4, 1, outputs=2, min_tokens=3), fill(1, 4, 1, outputs=3, min_tokens=3)
    _, batch = opened(one, other, slices=(Slice(0, 5, 1, False, True), Slice(1, 6, 1, False, True)))
    assert batch.sampler is not None
    assert (batch.sampler.masked_rows.tolist(), batch.sampler.masked_ids.tolist()) == ([0], [7])
    assert [product.start for product in batch.products] == [2, 3]


def test_a_result_for_a_slot_with_another_occupant_is_told_but_not_kept() -> None:
    slots, batch = opened(fill(0, 3, 1), slices=(Slice(0, 0, 3, False, True),))
    prepare(slots, StepPlan(1, 2, (), release=(0,), fill=(fill(0, 2, 1),)))
    assert results(slots, batch, (9,))[0].ids == (9,)
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
    ("swap", {"swap_out": (Copy(0, 2, 0),)}),
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
