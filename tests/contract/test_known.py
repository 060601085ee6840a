"""What users know Noria by is what it was: see `known.py` for what to do after an intended change."""

import pytest
from contract.known import QUIET, exposed, known


@pytest.mark.parametrize("name", QUIET)
def test_what_users_know_is_as_before(name: str) -> None:
    assert QUIET[name]() == known(name)


def test_a_page_of_metrics_is_told_without_its_numbers() -> None:
    page = '# HELP a_total What.\n# TYPE a_total counter\na_total{end="stop",class="x"} 3.0\na_total{end="length",class="y"} 0\n'
    assert exposed(page) == [
        "metric a_total counter: What.",
        "sample a_total class any",
        "sample a_total end length|stop",
        "sample a_total{end,class}",
    ]
