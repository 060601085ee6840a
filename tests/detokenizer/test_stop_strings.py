"""Stop strings: the earliest completion wins, and no more is held back than might become one."""

from hypothesis import given, settings
from hypothesis import strategies as st

from noria.services.detokenizer.core.stop_strings import StopMatch, StopMatcher

STOPS = st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=4)


def first_match(stops: list[str], text: str) -> StopMatch | None:
    """By definition: the first end at which any stop string ends; the first listed of those."""
    for end in range(1, len(text) + 1):
        for stop in stops:
            if text[:end].endswith(stop):
                return StopMatch(stop, end - len(stop), end)
    return None


def longest_held(stops: list[str], text: str) -> int:
    prefixes = {stop[:size] for stop in stops for size in range(len(stop))}
    return max(size for size in range(len(text) + 1) if text[len(text) - size :] in prefixes)


@given(stops=STOPS, parts=st.lists(st.text("abc", max_size=4), max_size=8))
@settings(deadline=None)
def test_matching_and_holding_are_as_defined(stops: list[str], parts: list[str]) -> None:
    matcher = StopMatcher(tuple(stops))
    text = ""
    for part in parts:
        match = matcher.feed(part, armed=True)
        text += part
        assert match == first_match(stops, text)
        if match is not None:
            return
        assert matcher.held == longest_held(stops, text)


@given(stops=STOPS, before=st.text("abc", max_size=8), after=st.text("abc", max_size=8))
@settings(deadline=None)
def test_what_completes_before_it_is_armed_does_not_count_but_may_begin_there(
    stops: list[str], before: str, after: str
) -> None:
    matcher = StopMatcher(tuple(stops))
    assert matcher.feed(before, armed=False) is None
    assert matcher.held == longest_held(stops, before)
    ends = [
        StopMatch(stop, end - len(stop), end)
        for end in range(len(before) + 1, len(before + after) + 1)
        for stop in stops
        if (before + after)[:end].endswith(stop)
    ]
    assert matcher.feed(after, armed=True) == (ends[0] if ends else None)


def test_ties_go_to_the_first_listed() -> None:
    for stops, winner in ((("b", "ab"), "b"), (("ab", "b"), "ab")):
        match = StopMatcher(stops).feed("xab", armed=True)
        assert match is not None
        assert match.stop == winner


def test_empty_stop_strings_are_ignored() -> None:
    assert StopMatcher(("", "x")).feed("abc", armed=True) is None
