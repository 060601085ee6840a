"""Which tasks a step's attention is cut into, and that what sequences have in common is computed once with the same bits."""

import ctypes

import msgspec
import numpy as np
import pytest
import torch
from executor.numerics.attending import Layer, Schedule, attended
from executor.numerics.comparison import LEVELS

from noria.services.executor.cpu.native.library import (
    AttentionHeadsArguments,
    CacheArguments,
    PagesArguments,
    SlicesArguments,
    open_kernels,
)

pytestmark = [
    pytest.mark.skipif(not LEVELS, reason="the kernels are not built"),
    pytest.mark.usefixtures("one_thread"),
]

PAGE, KV_HEADS, GROUP = 16, 2, 3


class Plan(ctypes.Structure):
    """The counts at the beginning of a plan."""

    _fields_ = tuple((name, ctypes.c_int64) for name in ("tasks", "joins", "parts", "commons", "states"))


def planned(tables: list[list[int]], positions: list[int], threads: int = 2, window: int = 0) -> Plan:
    """The plan of one query token for each table."""
    kernels = open_kernels(LEVELS[-1])
    table = np.zeros((len(tables), max(map(len, tables))), np.int32)
    for row, numbers in zip(table, tables, strict=True):
        row[: len(numbers)] = numbers
    starts, ones, rows = (np.array(each, np.int64) for each in (positions, [1] * len(positions), range(len(positions))))
    heads = AttentionHeadsArguments(KV_HEADS * GROUP, 0, 1.0, 0.0)
    cache = CacheArguments(None, None, 0, PAGE, KV_HEADS, 64, 0)
    slices = SlicesArguments(starts.ctypes.data, ones.ctypes.data, rows.ctypes.data, len(starts))
    pages = PagesArguments(table.ctypes.data, table.shape[1], 0, window, None, None)
    arguments = [*(ctypes.addressof(each) for each in (heads, cache, slices, pages)), threads]
    memory = ctypes.create_string_buffer(kernels.attention_plan(*arguments))
    pages.plan = ctypes.addressof(memory)
    assert kernels.attention_plan(*arguments) > 0
    return Plan.from_buffer_copy(memory)


def pages_of(sequence: int, tokens: int, common: int = 0) -> list[int]:
    """Pages of its own behind `common` ones that are anybody's."""
    count = tokens // PAGE + 1
    return [*range(2, 2 + common), *range(10_000 * (sequence + 1), 10_000 * (sequence + 1) + count - common)]


def test_a_span_in_the_same_pages_is_computed_once_for_as_many_as_share_it() -> None:
    tables = [pages_of(0, 700, 40), pages_of(1, 700, 40), pages_of(2, 700, 20), pages_of(3, 700)]
    found = planned(tables, [690, 600, 690, 690])
    # The first 256 tokens for three, the second for two; the third span of 40 pages is not complete, nor is anybody alone in one.
    assert found.commons == 2
    assert found.states == (3 + 2) * KV_HEADS * GROUP


def test_what_a_sequence_writes_now_and_what_a_window_hides_is_nobodys_in_common() -> None:
    tables = [pages_of(0, 300, 18), pages_of(1, 300, 18)]
    assert planned(tables, [256, 280]).commons == 1
    assert planned(tables, [255, 280]).commons == 0
    assert planned(tables, [256, 280], window=300).commons == 0


def test_more_sequences_than_share_a_packed_span_take_it_in_several_parts() -> None:
    found = planned([pages_of(each, 300, 16) for each in range(70)], [280] * 70)
    assert found.commons == 3  # of 32, 32 and 6
    assert found.states == 70 * KV_HEADS * GROUP


def test_a_few_long_sequences_are_cut_into_stretches_with_all_heads_of_a_token() -> None:
    found = planned([pages_of(each, 4100) for each in range(4)], [4090] * 4)
    assert (found.tasks, found.joins, found.parts) == (4 * 4, 4, 4 * 4 * KV_HEADS * GROUP)


def test_one_long_sequence_is_cut_by_heads_too_and_many_are_not_cut() -> None:
    found = planned([pages_of(0, 4100)], [4090])
    assert (found.tasks, found.joins) == (4 * KV_HEADS, KV_HEADS)
    found = planned([pages_of(each, 4100) for each in range(20)], [4090] * 20)
    assert (found.tasks, found.joins, found.parts) == (20, 0, 0)


def common_layer(page_size: int, **more: object) -> tuple[Layer, Schedule, Schedule]:
    """Four sequences, of which three begin with pages of the first; their steps together, and one by one."""
    shared = (0, 1100 // page_size, 1100 // page_size, 600 // page_size)
    lengths = (1170, 1180, 1160, 650)
    layer = msgspec.structs.replace(
        Layer(head_dim=32, page_size=page_size, lengths=lengths, common=shared, level=LEVELS[-1]), **more
    )
    prompts = [1110, 1105, 1110, 640]
    own = [pages * page_size for pages in shared]
    begin: Schedule = [[(0, 0, 1110)], *[[(each, own[each], prompts[each] - own[each])] for each in (1, 2, 3)]]
    steps = [[(each, prompts[each] + i, 1) for each in range(4)] for i in range(10)]
    return layer, [*begin, *steps], [*begin, *[[each] for step in steps for each in step]]


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("page_size", [16, 7, 512])
def test_a_prefix_in_common_gives_the_same_bits_as_each_sequence_alone(page_size: int, threads: int) -> None:
    layer, together, alone = common_layer(page_size, threads=threads)
    one = attended(msgspec.structs.replace(layer, threads=1), alone)
    assert attended(layer, together).same_bits(one)
    # Page for page the same, yet nobody's in common.
    apart = attended(msgspec.structs.replace(layer, common=(0, 0, 0, 0), threads=1), alone)
    assert not apart.same_bits(one)


@pytest.mark.parametrize("cache", [torch.bfloat16, torch.int8])
@pytest.mark.parametrize("level", LEVELS)
def test_a_prefix_in_common_gives_the_same_bits_in_every_precision(cache: torch.dtype, level: str) -> None:
    layer, together, alone = common_layer(16, cache=cache, dtype=torch.bfloat16, level=level)
    assert attended(layer, together).same_bits(attended(layer, alone))


def test_a_prefix_in_common_equals_the_reference() -> None:
    layer, together, _ = common_layer(16)
    want = attended(msgspec.structs.replace(layer, level=""), together)
    assert attended(layer, together).error(want) < 1e-5
