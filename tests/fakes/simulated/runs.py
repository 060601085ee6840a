"""Single runs, as tests and processes of many runs make them."""

import traceback
from collections import Counter
from typing import Final

from fakes.simulated.universe import Universe

from noria.proto.base import Service

# What the runs of a test bring about, each at least once.
KINDS: Final = (
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


def repeat(seed: int) -> str:
    """The command that runs a seed again and shows everything."""
    return f"PYTHONPATH=tests python -m fakes.simulated --seed {seed} --trace"


def attempt(seed: int, only: Service | None = None) -> tuple[int, str, Counter[str]]:
    """Run a seed, in which all kinds of things go wrong or one service dies; returns what went wrong, or nothing."""
    universe = Universe(seed, only=only)
    try:
        universe.run()
    except Exception as error:  # a seed that fails must not end the others
        frames = traceback.extract_tb(error.__traceback__)[-3:]
        place = " < ".join(f"{frame.name}:{frame.lineno}" for frame in reversed(frames))
        what = f"{type(error).__name__} at {place}: {str(error)[:900]}"
        return seed, "\n".join((what, *universe.trace.last())), universe.counts
    return seed, "", universe.counts
