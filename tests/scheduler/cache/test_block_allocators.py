"""Chunks, the blocks they are cut into, and rings."""

import random

import pytest
from fakes.desk import Desk, generated, submission
from fakes.executor import geometry, hybrid

from noria.proto.execution import Group
from noria.services.scheduler.core.cache.block_allocators import UNLIMITED, BlockAllocator, SlidingAttentionAllocator
from noria.services.scheduler.core.cache.cache_allocator import CacheAllocator
from noria.services.scheduler.core.cache.chunk_pool import CacheChunkPool
from noria.services.scheduler.core.interface.settings import CoreSettings


def test_chunks_in_part_use_are_filled_first_and_free_ones_go_back() -> None:
    pool = CacheChunkPool(6, 2)
    blocks = BlockAllocator(pool, 3)
    first = blocks.take(2)
    assert (pool.blank, blocks.spare, blocks.chunks(1), blocks.chunks(2)) == (3, 1, 0, 1)
    second = blocks.take(3)
    assert {block // 3 for block in first} & {second[0] // 3}
    assert (pool.blank, blocks.spare) == (2, 1)
    for block in second:
        blocks.give_back(block)
    assert (pool.blank, blocks.spare) == (3, 1)
    blocks.check(first)


def test_groups_share_the_pool_and_never_a_chunk() -> None:
    pool = CacheChunkPool(12, 2)
    groups = [BlockAllocator(pool, 1), BlockAllocator(pool, 4), BlockAllocator(pool, 3)]
    draw, held = random.Random(7), [[], [], []]  # type: tuple[random.Random, list[list[int]]]
    for _ in range(2000):
        which = draw.randrange(3)
        count = draw.randrange(1, 5)
        if draw.random() < 0.5 and groups[which].chunks(count) <= pool.blank:
            held[which] += groups[which].take(count)
        elif held[which]:
            groups[which].give_back(held[which].pop(draw.randrange(len(held[which]))))
        chunks = [group.check(own) for group, own in zip(groups, held, strict=True)]
        pool.check([chunk for each in chunks for chunk in each])
    assert any(held)


def test_a_ring_has_no_more_entries_than_window_and_chunk_need() -> None:
    ring = SlidingAttentionAllocator(CacheChunkPool(100, 2), 4, 1, 5)
    assert [ring.pages(length) for length in (1, 4, 5, 20, 21, 32_000)] == [1, 1, 2, 5, 5, 5]
    assert [ring.room([0] * entries) for entries in (1, 4, 5)] == [4, 16, UNLIMITED]


@pytest.mark.parametrize("per_chunk", [(1, 1), (5, 1), (2, 3)])
@pytest.mark.parametrize(("page_size", "window", "batch"), [(1, 1, 1), (4, 3, 7), (4, 16, 16), (8, 5, 64), (2, 9, 3)])
def test_a_long_sequence_is_right_in_a_short_ring_at_any_chunk_size(
    page_size: int, window: int, batch: int, per_chunk: tuple[int, int]
) -> None:
    kinds = hybrid(window, page_size, batch, per_chunk)
    shape = geometry(num_blocks=202, page_size=page_size, max_batch_tokens=batch, kinds=kinds)
    desk = Desk(CoreSettings(), shape)
    asked = [submission(number, prompt=41, output=70) for number in (1, 2, 3)]
    desk.submit(*asked)
    desk.run()
    assert all(desk.output(each.stream.request) == generated(each) for each in asked)
    longest = max(len(fill.blocks[1]) for plan in desk.plans for fill in plan.fill)
    grown = [len(grow.blocks) for plan in desk.plans for grow in plan.grow if grow.group == 1]
    assert longest + sum(grown) <= 3 * kinds[1].ring_pages


@pytest.mark.parametrize(
    ("kinds", "chunks", "largest"),
    [
        ((Group(0, 1),), 10, 40),
        ((Group(0, 1, 5),), 10, 200),
        ((Group(0, 3, 5), Group(4, 15, 1, 6)), 10, 80),  # six chunks for the ring, four of five pages each
        ((Group(0, 3, 5), Group(4, 15, 1, 6)), 6, 20),  # ring not full: one chunk of full, five of the ring
        ((Group(4, 1, 1, 6),), 6, 256),  # sliding only: as long as the context
    ],
)
def test_the_largest_request_is_what_the_pool_can_hold_alone(
    kinds: tuple[Group, ...], chunks: int, largest: int
) -> None:
    assert CacheAllocator(geometry(num_blocks=chunks + 2, page_size=4, kinds=kinds)).largest_tokens == largest


def test_the_largest_request_of_a_hybrid_does_run() -> None:
    kinds = (Group(0, 3, 5), Group(4, 15, 1, 6))
    desk = Desk(
        CoreSettings(max_batch_tokens=16), geometry(num_blocks=12, page_size=4, max_batch_tokens=16, kinds=kinds)
    )
    asked = submission(1, prompt=30, output=50)
    desk.submit(asked)
    desk.run()
    assert desk.output(1) == generated(asked)


def test_blocks_in_the_emptiest_chunks_are_moved_into_the_fullest() -> None:
    blocks = BlockAllocator(CacheChunkPool(6, 2), 4)
    first, other = blocks.take(3), blocks.take(3)
    for block in (*first[1:], *other[:1]):
        blocks.give_back(block)
    kept = [first[0], *other[1:]]
    moved = blocks.gather(kept)
    after = [moved.get(block, block) for block in kept]
    assert len(moved) == 1
    assert len(blocks.check(after)) == 1
    assert blocks.gather(after) == {}


@pytest.mark.parametrize("steps", [1, 2])
def test_a_request_left_alone_in_parts_of_many_chunks_is_gathered_and_goes_on(steps: int) -> None:
    # Both rings grow side by side, so that the second leaves half of each chunk to the first, which later needs all of
    # the pool: seven blocks of full attention, and four of its ring in two chunks instead of three.
    kinds = (Group(0, 2, 1), Group(2, 1, 2, 4))
    shape = geometry(num_blocks=11, page_size=2, max_batch_tokens=4, kinds=kinds)
    desk = Desk(CoreSettings(safety_margin=0.0, max_batch_tokens=4, steps_in_flight=steps), shape)
    asked = [submission(1, prompt=1, output=13), submission(2, prompt=1, output=5)]
    assert CacheAllocator(shape).largest_tokens == 14
    desk.submit(*asked)
    desk.run()
    assert [copy.group for plan in desk.plans for copy in plan.copies] == [1]
    assert all(desk.output(each.stream.request) == generated(each) for each in asked)
    assert desk.core.state.counters.resets == 0
