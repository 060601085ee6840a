"""What a running stack is known by is what it was: metrics, `/debug/state`, the keys of HTTP answers."""

from pathlib import Path

import pytest
from contract.known import STACKED, Seen, known, look


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    return look(Path(tmp_path_factory.mktemp("known")))


@pytest.mark.parametrize("name", STACKED)
def test_what_a_stack_tells_has_the_names_it_had(name: str, seen: Seen) -> None:
    assert STACKED[name](seen) == known(name)
