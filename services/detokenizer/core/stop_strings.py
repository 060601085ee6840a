"""Finds stop strings in a growing text, and how much of its end might still become one.

An Aho-Corasick automaton (Aho and Corasick, Efficient string matching, CACM 1975), so that the cost of a character does
not depend on the number of stop strings.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple


class StopMatch(NamedTuple):
    """A completed stop string: where it begins and ends in the stream's text, in characters."""

    stop: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class StopAutomaton:
    """Stop strings compiled into an Aho-Corasick automaton.

    steps: transitions of each state by character, already resolved along suffixes; a missing one leads to state 0.
    found: for each state, the first listed stop string that ends there, or empty. held: for each state, how many of the
    last characters are the longest proper prefix of a stop string.
    """

    steps: tuple[dict[str, int], ...]
    found: tuple[str, ...]
    held: tuple[int, ...]


@lru_cache(maxsize=256)
def compile_stops(stops: tuple[str, ...]) -> StopAutomaton:
    """Build the automaton for these stop strings; empty ones are ignored. Cached, as requests tend to repeat them."""
    children: list[dict[str, int]] = [{}]
    ranks: list[int | None] = [None]
    depths = [0]
    for rank, stop in enumerate(stops):
        state = 0
        for character in stop:
            if character not in children[state]:
                children[state][character] = len(children)
                children.append({})
                ranks.append(None)
                depths.append(depths[state] + 1)
            state = children[state][character]
        if stop and ranks[state] is None:
            ranks[state] = rank
    return _resolve(stops, children, ranks, depths)


def _resolve(
    stops: tuple[str, ...], children: list[dict[str, int]], ranks: list[int | None], depths: list[int]
) -> StopAutomaton:
    steps: list[dict[str, int]] = [dict(children[0])] + [{} for _ in children[1:]]
    held = [0] * len(children)
    failure = [0] * len(children)
    queue = list(children[0].values())
    for state in queue:
        suffix = failure[state]
        steps[state] = {**steps[suffix], **children[state]}
        held[state] = depths[state] if children[state] else held[suffix]
        candidates = [rank for rank in (ranks[state], ranks[suffix]) if rank is not None]
        ranks[state] = min(candidates, default=None)
        for character, child in children[state].items():
            failure[child] = steps[suffix].get(character, 0)
            queue.append(child)
    found = tuple("" if rank is None else stops[rank] for rank in ranks)
    return StopAutomaton(tuple(steps), found, tuple(held))


class StopMatcher:
    """Looks for stop strings in one stream's text as it grows."""

    __slots__ = ("_automaton", "_position", "_state")

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._automaton = compile_stops(stops)
        self._state = 0
        self._position = 0

    @property
    def held(self) -> int:
        """How many characters at the end of the text are a proper prefix of a stop string."""
        return self._automaton.held[self._state]

    def feed(self, text: str, armed: bool) -> StopMatch | None:
        """Read more text; returns the first stop string that completes, if armed. Must not be called after a match."""
        steps, found = self._automaton.steps, self._automaton.found
        state = self._state
        for offset, character in enumerate(text, self._position + 1):
            state = steps[state].get(character, 0)
            if armed and found[state]:
                return StopMatch(found[state], offset - len(found[state]), offset)
        self._state = state
        self._position += len(text)
        return None
