"""The rule by which runs of tokens are taken: a table, and any order of repeated, overlapping, lost and outdated runs."""

import random

import pytest

from noria.proto.token_runs import RunFit, RunStatus, StreamPosition

HERE = StreamPosition(attempt=2, ids=5, characters=9)


@pytest.mark.parametrize(
    ("attempt", "start", "characters", "expected"),
    [
        (2, 5, 9, RunFit(RunStatus.CONTINUES)),
        (2, 3, 9, RunFit(RunStatus.CONTINUES, 2, 0)),
        (2, 5, 4, RunFit(RunStatus.CONTINUES, 0, 5)),
        (2, 0, 0, RunFit(RunStatus.CONTINUES, 5, 9)),
        (2, 6, 9, RunFit(RunStatus.MISSING_IDS)),
        (2, 5, 10, RunFit(RunStatus.MISSING_TEXT)),
        (2, 6, 10, RunFit(RunStatus.MISSING_IDS)),
        (1, 5, 9, RunFit(RunStatus.OUTDATED)),
        (1, 6, 10, RunFit(RunStatus.OUTDATED)),
        (3, 5, 9, RunFit(RunStatus.RESTARTS)),
        (3, 0, 0, RunFit(RunStatus.RESTARTS)),
        (9, 2, 3, RunFit(RunStatus.RESTARTS)),
        (3, 6, 9, RunFit(RunStatus.MISSING_IDS)),
        (3, 5, 10, RunFit(RunStatus.MISSING_TEXT)),
    ],
)
def test_what_a_run_is_to_a_receiver(attempt: int, start: int, characters: int, expected: RunFit) -> None:
    assert HERE.fit(attempt, start, characters) == expected


def test_runs_without_text_fit_by_their_token_ids_alone() -> None:
    assert StreamPosition(0, 0).fit(0, 0) == RunFit(RunStatus.CONTINUES)
    assert StreamPosition(0, 4).fit(0, 1) == RunFit(RunStatus.CONTINUES, 3)
    assert StreamPosition(0, 4).fit(0, 5) == RunFit(RunStatus.MISSING_IDS)


@pytest.mark.parametrize("seed", range(50))
def test_a_receiver_that_follows_the_rule_never_holds_anything_but_a_beginning_of_an_attempt(seed: int) -> None:
    chance = random.Random(seed)
    length, attempts = 12, 4
    shared = [0, *sorted(chance.randrange(length + 1) for _ in range(attempts - 1))]
    outputs = [list(range(length))]
    for attempt in range(1, attempts):  # each attempt goes on from a beginning of the one before it
        outputs.append(
            [*outputs[-1][: shared[attempt]], *range(100 * attempt, 100 * attempt + length - shared[attempt])]
        )
    newest, ids = 0, list[int]()
    latest = 0
    for _ in range(200):
        latest = max(latest, chance.randrange(attempts) if chance.random() < 0.1 else 0)
        attempt = chance.randint(0, latest)
        lowest = min(shared[newest + 1 : attempt + 1], default=0)
        # A sender begins a new attempt no later than where it parts from what the receiver may have.
        start = chance.randint(0, lowest) if attempt > newest else chance.randrange(length + 1)
        run = outputs[attempt][start : chance.randint(start, length)]
        fit = StreamPosition(newest, len(ids)).fit(attempt, start)
        if fit.status is RunStatus.RESTARTS:
            newest = attempt
            del ids[start:]
        if fit.status in (RunStatus.CONTINUES, RunStatus.RESTARTS):
            ids += run[fit.known_ids :]
        assert ids == outputs[newest][: len(ids)]
    # Whatever was lost: asking once for what lies behind it gives the whole.
    start = min(len(ids), min(shared[newest + 1 : latest + 1], default=length))
    fit = StreamPosition(newest, len(ids)).fit(latest, start)
    if fit.status is RunStatus.RESTARTS:
        del ids[start:]
    ids += outputs[latest][start:][fit.known_ids :]
    assert ids == outputs[latest]
