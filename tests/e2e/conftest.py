from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.harness import LENIENT, Stack, stack
from fakes.tiny_model import build_tiny_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def smollm2() -> Iterator[Stack]:
    """The real small model in float32, shared by the tests that only send requests."""
    with stack("smollm2", "--dtype", "float32", "--max-batch-tokens", "256") as running:
        yield running


@pytest.fixture(scope="session")
def tiny(tiny_model: Path) -> Iterator[Stack]:
    """A tiny random model, for load and abuse; with short timeouts for silent peers."""
    impatient = {**LENIENT, "NORIA_RUNTIME_PEER_TIMEOUT_S": "3"}
    with stack(
        str(tiny_model), "--dtype", "float32", "--max-requests-per-batch", "64", environment=impatient
    ) as running:
        yield running


@pytest.fixture(scope="session")
def narrow(tiny_model: Path) -> Iterator[Stack]:
    """A tiny random model with few slots and a short queue; its gateway may be killed."""
    few = ("--max-requests-per-batch", "8", "--max-queue-size", "16")
    with stack(str(tiny_model), "--dtype", "float32", *few, environment=LENIENT) as running:
        yield running
