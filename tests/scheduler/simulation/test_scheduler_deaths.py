"""The scheduler dies under an executor that keeps a true map of its cache: its successor takes over what is there."""

from collections import Counter

import pytest
from fakes.world import World


@pytest.mark.parametrize("block", range(8))
def test_tokens_and_memory_are_as_if_no_scheduler_had_died(block: int) -> None:
    for seed in range(2000 + block * 6, 2000 + block * 6 + 6):
        world = World(seed, deaths=0.02, fair=block % 2 > 0, failures=block % 4 > 1)
        try:
            world.run()
            world.verify()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, {world.settings}: {error}") from error


def test_the_seeds_reach_all_that_can_happen() -> None:
    total: Counter[str] = Counter()
    for seed in range(2000, 2012):
        world = World(seed, deaths=0.02)
        world.run()
        total += world.counts
    assert total["deaths"] > 50
    assert total["adopted"] > 100
