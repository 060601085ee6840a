"""Logs that earlier commits recorded are read, give the same plans again and the same answers."""

import json
from pathlib import Path

import pytest
from simulation.kept_logs import LOGS, answers


def test_there_are_kept_logs() -> None:
    assert {each.stem for each in LOGS} >= {"f194ce5-swaps", "f194ce5-deaths", "f194ce5-fair"}


@pytest.mark.parametrize("log", LOGS, ids=lambda each: each.stem)
def test_a_log_of_an_earlier_commit_gives_the_same_plans_and_answers(log: Path) -> None:
    found, kept = answers(log), json.loads(log.with_suffix(".json").read_text())
    assert found["plans"] == kept["plans"]
    assert found["why"] == kept["why"]
    assert found["replay"] == kept["replay"]
