"""Services that are told wrong numbers by their neighbours: none hangs, and from what is on record everything goes on."""

import resource
from collections import Counter

from fakes.simulated.lying import LyingUniverse

_SEEDS = 40
_GROWTH_MIB_MAX = 300


def test_wrong_numbers_from_neighbours_end_processes_cleanly_and_nothing_for_good() -> None:
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    deaths, told = Counter[str](), 0
    for seed in range(_SEEDS):
        universe = LyingUniverse(seed, rate=0.03)
        try:
            universe.run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
        deaths += universe.deaths
        told += universe.liar.told
    assert told > 250
    assert {"scheduler", "admission", "executor", "detokenizer"} <= {name.partition(":")[0] for name in deaths}
    grown_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib) / 1024
    assert grown_mib < _GROWTH_MIB_MAX, "somebody took a number for a size"
