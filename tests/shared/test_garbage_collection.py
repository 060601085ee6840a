"""The garbage collector runs seldom, and every pause is counted."""

import gc
from collections.abc import Iterator

import pytest

from noria.shared.process.garbage_collection import (
    IDLE_INTERVAL_NS,
    YOUNG_ALLOCATIONS,
    GarbageCollection,
    freeze_start_up_objects,
)


@pytest.fixture
def garbage() -> Iterator[GarbageCollection]:
    before = gc.get_threshold()
    counted = GarbageCollection()
    counted.start()
    yield counted
    counted.close()
    gc.set_threshold(*before)
    gc.unfreeze()


def test_every_pause_is_counted(garbage: GarbageCollection) -> None:
    before = garbage.counts()
    gc.collect(0)
    gc.collect()
    after = garbage.counts()
    assert after["collections"] >= before["collections"] + 2
    assert after["full"] >= before["full"] + 1
    assert after["total_us"] >= after["longest_us"] > 0


def test_young_objects_are_left_alone_for_long(garbage: GarbageCollection) -> None:
    freeze_start_up_objects()
    before = garbage.counts()["collections"]
    kept = [[] for _ in range(YOUNG_ALLOCATIONS // 2)]  # type: list[list[int]]
    assert kept
    assert garbage.counts()["collections"] == before


def test_what_is_frozen_is_left_out_of_collections(garbage: GarbageCollection) -> None:
    freeze_start_up_objects()
    assert gc.get_freeze_count() > 0
    assert len(gc.get_objects()) < gc.get_freeze_count()


def test_everything_is_collected_when_a_process_has_become_idle(garbage: GarbageCollection) -> None:
    full = garbage.counts()["full"]
    garbage.collect_when_idle(1, lambda: (5, True))
    assert garbage.counts()["full"] == full
    garbage.collect_when_idle(2, lambda: (5, False))
    assert garbage.counts()["full"] == full + 1


def test_an_idle_process_collects_seldom_and_only_after_work(garbage: GarbageCollection) -> None:
    garbage.collect_when_idle(0, lambda: (5, False))
    full = garbage.counts()["full"]
    garbage.collect_when_idle(IDLE_INTERVAL_NS - 1, lambda: (6, False))
    garbage.collect_when_idle(IDLE_INTERVAL_NS, lambda: (5, False))
    assert garbage.counts()["full"] == full
    garbage.collect_when_idle(IDLE_INTERVAL_NS + 1, lambda: (6, False))
    assert garbage.counts()["full"] == full + 1
