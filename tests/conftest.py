import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.peers import BarePeer, runtime

from noria.proto.base import Service
from noria.shared.config.config import RuntimeSettings

# Triton's kernels are tested on a processor, by its interpreter; it looks here when they are first imported.
os.environ.setdefault("TRITON_INTERPRET", "1")

# A shell that starts the tests in the background, or under nohup, lets its children ignore these for good.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_addoption(parser: pytest.Parser) -> None:
    """How long random tests go on, and from where."""
    parser.addoption("--seed", type=int, default=1, help="what wrong input is drawn from")
    parser.addoption("--rounds", type=int, default=1, help="how many times as much of it")


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
