from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.peers import BarePeer, runtime

from noria.proto.base import Service
from noria.shared.config.config import RuntimeSettings


@pytest.fixture
def settings(tmp_path: Path) -> RuntimeSettings:
    """For a runtime folder of the test's own."""
    return runtime(tmp_path)


@pytest.fixture
def peer(settings: RuntimeSettings) -> Iterator[BarePeer]:
    """A detokenizer's bare sockets, towards a scheduler."""
    bare = BarePeer(settings, Service.DETOKENIZER, Service.SCHEDULER)
    yield bare
    bare.close()
