"""The garbage collector runs seldom, and every pause is counted."""

import gc
from collections.abc import Iterator

import pytest

from noria.shared.process.garbage import IDLE_INTERVAL_NS, YOUNG_ALLOCATIONS, Garbage, freeze


@pytest.fixture
def garbage() -> Iterator[Garbage]:
    before = gc.get_threshold()
    counted = Garbage()
    counted.watch()
    yield counted
    counted.close()
    gc.set_threshold(*before)
    gc.unfreeze()


def test_every_pause_is_counted(garbage: Garbage) -> None:
    before = garbage.counts()
    gc.collect(0)
    gc.collect()
    after = garbage.counts()
    assert after["collections"] >= before["collections"] + 2
    assert after["full"] >= before["full"] + 1
    assert after["total_us"] >= after["longest_us"] > 0


def test_young_objects_are_left_alone_for_long(garbage: Garbage) -> None:
    freeze()
    before = garbage.counts()["collections"]
    kept = [[] for _ in range(YOUNG_ALLOCATIONS // 2)]  # type: list[list[int]]
    assert kept
    assert garbage.counts()["collections"] == before


def test_what_is_frozen_is_left_out_of_collections(garbage: Garbage) -> None:
    freeze()
    assert gc.get_freeze_count() > 0
    assert len(gc.get_objects()) < gc.get_freeze_count()


def test_everything_is_collected_when_a_process_has_become_idle(garbage: Garbage) -> None:
    full = garbage.counts()["full"]
    garbage.tend(1, lambda: (5, True))
    assert garbage.counts()["full"] == full
    garbage.tend(2, lambda: (5, False))
    assert garbage.counts()["full"] == full + 1


def test_an_idle_process_collects_seldom_and_only_after_work(garbage: Garbage) -> None:
    garbage.tend(0, lambda: (5, False))
    full = garbage.counts()["full"]
    garbage.tend(IDLE_INTERVAL_NS - 1, lambda: (6, False))
    garbage.tend(IDLE_INTERVAL_NS, lambda: (5, False))
    assert garbage.counts()["full"] == full
    garbage.tend(IDLE_INTERVAL_NS + 1, lambda: (6, False))
    assert garbage.counts()["full"] == full + 1
