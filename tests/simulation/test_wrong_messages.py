"""Wrong messages between services: none makes a process hang, and every request ends once messages are right again."""

import resource
from collections import Counter

from fakes.simulated.wrong_message_simulation import WrongMessageSimulation

_SEEDS = 40
_GROWTH_MIB_MAX = 300


def test_wrong_numbers_from_neighbours_end_processes_cleanly_and_nothing_for_good() -> None:
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    deaths, changed = Counter[str](), 0
    for seed in range(_SEEDS):
        simulation = WrongMessageSimulation(seed, rate=0.03)
        try:
            simulation.run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
        deaths += simulation.deaths
        changed += simulation.corrupter.changed
    assert changed > 250
    assert {"scheduler", "admission", "executor", "detokenizer"} <= {name.partition(":")[0] for name in deaths}
    grown_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib) / 1024
    assert grown_mib < _GROWTH_MIB_MAX, "somebody took a number for a size"
