"""To which sizes steps are padded, and which graphs are kept."""

import msgspec
import pytest

from noria.proto.execution import Group
from noria.services.executor.cuda.layout.graph_dispatcher import REFUSALS_MAX, GraphDispatcher, GraphMode
from noria.services.executor.cuda.layout.padding import Padding, beyond, decodes, largest_sizes, plain
from noria.services.executor.cuda.layout.step_layout import StepLayout
from noria.services.executor.cuda.layout.step_sizes import GroupSizes, StepSizes
from noria.services.executor.plan.limits import ExecutorLimits

SHAPE = ExecutorLimits(24, 512, 4096, 16, 400, 90, (Group(0, 1), Group(300, 1, ring_pages=52)))
PADDING = Padding(64, 1024)


def decoding(count: int, entries: int, splits: int) -> StepSizes:
    return StepSizes(count, count, count, 0, count, (GroupSizes(entries, splits), GroupSizes(52, count)))


def test_decodes_are_padded_to_powers_of_two_up_to_the_slots_there_are() -> None:
    padded = [PADDING.padded(SHAPE, decoding(count, 3, count)) for count in range(1, 25)]
    assert [each.tokens for each in padded] == [1, 2, 4, 4, *[8] * 4, *[16] * 8, *[24] * 8]
    assert all(each.tokens == each.slices == each.singles == each.samples for each in padded)
    assert len(set(padded)) == 6


def test_what_is_read_of_the_cache_is_padded_to_whole_intervals_up_to_the_context() -> None:
    found = [PADDING.padded(SHAPE, decoding(1, entries, 1)).groups for entries in (1, 64, 65, 129, 256)]
    assert [group.entries for group, _ in found] == [64, 64, 128, 192, 256]
    assert {ring.entries for _, ring in found} == {52}


def test_mixed_steps_are_padded_in_query_tokens() -> None:
    mixed = StepSizes(70, 3, 2, 5, 2, (GroupSizes(3, 3), GroupSizes(52, 2)))
    padded = PADDING.padded(SHAPE, mixed)
    assert (padded.tokens, padded.slices, padded.singles, padded.tiles, padded.samples) == (128, 4, 2, 8, 2)
    without = PADDING.padded(SHAPE, msgspec.structs.replace(mixed, samples=0))
    assert (without.samples, decodes(without)) == (0, False)


def test_no_step_is_larger_than_the_largest() -> None:
    largest = largest_sizes(SHAPE, PADDING, 16)
    for sizes in (
        decoding(24, 256, 24 * 16),
        StepSizes(512, 24, 0, 24 + 32, 24, (GroupSizes(256, 0), GroupSizes(52, 0))),
    ):
        padded = PADDING.padded(SHAPE, sizes)
        assert StepLayout(SHAPE, padded, 16).bytes <= StepLayout(SHAPE, largest, 16).bytes
        assert PADDING.padded(SHAPE, padded) == padded


def test_what_is_sampled_beyond_the_plain_moves_no_array_that_the_forward_pass_reads() -> None:
    padded = PADDING.padded(SHAPE, decoding(3, 3, 3))
    rich = beyond(padded, StepSizes(3, 3, 3, 0, 3, padded.groups, 2, 500, 1, 7, 5))
    assert plain(padded) and not plain(rich)
    some, more = StepLayout(SHAPE, padded, 16).places, StepLayout(SHAPE, rich, 16).places
    same = [name for name in some if some[name].shape == more[name].shape]
    assert {"token_ids", "carry", "0.table", "sampled_rows", "sampled_slots", "top_p", "1.joins"} <= set(same)
    assert all(some[name] == more[name] for name in same if name not in ("history",))


def test_common_shapes_are_those_of_decodes_the_largest_first() -> None:
    common = PADDING.common(SHAPE)
    assert [each.tokens for each in common] == [24, 16, 8, 4, 2, 1]
    assert all(decodes(each) and PADDING.padded(SHAPE, each) == each for each in common)


def test_a_shape_is_recorded_when_it_comes_again_and_then_replayed() -> None:
    book: GraphDispatcher[StepSizes, str] = GraphDispatcher(2)
    sizes = decoding(1, 1, 1)
    assert [book.choose(sizes), book.choose(sizes)] == [GraphMode.EAGER, GraphMode.CAPTURE]
    assert book.captured(sizes, "a graph") == []
    assert book.choose(sizes) is GraphMode.REPLAY and book.graph(sizes) == "a graph"


def test_the_graph_not_used_for_longest_gives_way_and_may_come_again() -> None:
    book: GraphDispatcher[StepSizes, int] = GraphDispatcher(2)
    shapes = [decoding(count, 1, 1) for count in (1, 2, 3)]
    book.captured(shapes[0], 0)
    book.captured(shapes[1], 1)
    assert book.graph(shapes[0]) == 0
    assert book.captured(shapes[2], 2) == [1]
    assert [book.choose(each) for each in shapes] == [GraphMode.REPLAY, GraphMode.EAGER, GraphMode.REPLAY]
    assert sorted(book.clear()) == [0, 2] and len(book) == 0
    assert book.choose(shapes[1]) is GraphMode.CAPTURE


def test_what_could_not_be_recorded_is_not_tried_again_and_after_a_few_nothing_is() -> None:
    book: GraphDispatcher[StepSizes, int] = GraphDispatcher(4)
    shapes = [decoding(count, 1, 1) for count in range(1, REFUSALS_MAX + 2)]
    assert [book.refuse(each, "no") for each in shapes[:2]] == [True, False]
    assert [book.choose(shapes[0]) for _ in range(3)] == [GraphMode.EAGER] * 3
    book.captured(shapes[-1], 1)
    for each in shapes[2:-1]:
        book.refuse(each, "no")
    other = decoding(20, 1, 1)
    assert [book.choose(other) for _ in range(3)] == [GraphMode.EAGER] * 3
    assert book.choose(shapes[-1]) is GraphMode.REPLAY


@pytest.mark.parametrize("most", [0, 1])
def test_without_graphs_every_step_is_eager(most: int) -> None:
    book: GraphDispatcher[StepSizes, int] = GraphDispatcher(most)
    found = [book.choose(decoding(1, 1, 1)) for _ in range(3)]
    assert (found == [GraphMode.EAGER] * 3) == (most == 0)
