"""Runs single seeds, for tests and for processes that run many."""

import traceback
from collections import Counter
from typing import Final

from fakes.simulated.simulation import StackSimulation

from noria.proto.base import Service

# Faults and outcomes that each happen at least once in the runs of a test.
FAULT_KINDS: Final = (
    "death of admission",
    "death of client",
    "death of detokenizer",
    "death of executor",
    "death of scheduler",
    "hang",
    "poison",
    "stop",
    "drain",
    "disk full",
    "new attempt",
    "pause",
    "joined again",
    "step failed: error",
    "step failed: memory",
    "outbox full",
    "policy changed",
    "swaps_in",
    "swaps_out",
    "resets",
    "evictions",
    "merged_pages",
    "hit_tokens",
    "discarded_slices",
    "adopted",
    "tokens told together",
    "tokens held at a death",
    "logprobs",
    "charged tokens",
    "refused",
    "tried again",
    "slow reader",
    "end: stop",
    "end: length",
    "end: cancelled",
    "end: deadline",
    "end: shed",
    "end: error",
)


def repeat_command(seed: int) -> str:
    """Return the command that runs a seed again with a full trace."""
    return f"PYTHONPATH=tests python -m fakes.simulated --seed {seed} --trace"


def run_seed(seed: int, only: Service | None = None) -> tuple[int, str, Counter[str]]:
    """Run a seed with all kinds of faults, or with deaths of one service only; returns seed, failure (or empty) and counts."""
    simulation = StackSimulation(seed, only=only)
    try:
        simulation.run()
    except Exception as error:  # a seed that fails must not end the others
        frames = traceback.extract_tb(error.__traceback__)[-3:]
        place = " < ".join(f"{frame.name}:{frame.lineno}" for frame in reversed(frames))
        what = f"{type(error).__name__} at {place}: {str(error)[:900]}"
        return seed, "\n".join((what, *simulation.trace.last())), simulation.counts
    return seed, "", simulation.counts
