from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.front_door import FrontDoor


@pytest.fixture
def door(tmp_path: Path) -> Iterator[FrontDoor]:
    """A front door that says nothing until it is given a script."""
    with FrontDoor(f"ipc://{tmp_path}/door.sock") as door:
        yield door
