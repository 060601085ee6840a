"""`noria up --prompt`, what `make run` runs: start, answer, and serve or end, with an exit status that tells the truth."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.harness import NORIA, free_port, wait_until
from fakes.tiny_model import build_tiny_model

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("NORIA_")}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="noria-") as path:
        yield Path(path)


def command(model: Path, folder: Path, *arguments: str) -> list[str]:
    http = f"127.0.0.1:{free_port()}"
    runtime = str(folder / "run")
    return [str(NORIA), "up", "--model", str(model), "--http", http, "--runtime-dir", runtime, *arguments]


def left_in(folder: Path) -> set[str]:
    """What a stack leaves beside its locks and the folder with what each tenant used."""
    return {path.name for path in (folder / "run").iterdir() if path.suffix != ".lock"} - {"state"}


def test_once_ends_after_the_answer_with_exit_status_0_and_leaves_nothing(model: Path, folder: Path) -> None:
    line = command(model, folder, "--prompt", "hello there", "--once", "--log-level", "warning")
    done = subprocess.run(line, capture_output=True, text=True, env=ENVIRONMENT, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    table, _, answer = done.stdout.partition("> hello there")
    assert "noria is ready after" in table
    assert "float32 on cpu" in table or "bfloat16 on cpu" in table
    assert answer.strip()
    assert not left_in(folder)


def test_a_stack_that_cannot_start_says_so_by_its_exit_status(model: Path, folder: Path) -> None:
    line = command(model, folder, "--prompt", "hi", "--once")
    line[line.index("--http") + 1] = "256.1.1.1:80"
    done = subprocess.run(line, capture_output=True, text=True, env=ENVIRONMENT, timeout=240, check=False)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert not left_in(folder)


def test_another_stack_at_the_same_address_is_not_asked_in_place_of_ours(model: Path, folder: Path) -> None:
    first = subprocess.Popen(
        line := command(model, folder, "--prompt", "hi"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, env=ENVIRONMENT, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert first.stdout is not None
        assert any("until Ctrl-C" in text for text in first.stdout)
        second = subprocess.run([*line, "--once"], capture_output=True, text=True, env=ENVIRONMENT, timeout=240)
        assert second.returncode == 2
        assert "already runs" in second.stderr
        assert second.stdout == ""
    finally:
        first.terminate()
        first.communicate()


def test_ctrl_c_while_serving_is_an_orderly_stop(model: Path, folder: Path) -> None:
    output = folder / "output"
    with output.open("wb") as file:
        process = subprocess.Popen(
            command(model, folder, "--prompt", "hi"),
            stdout=file, stderr=file, env=ENVIRONMENT, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    try:
        wait_until(lambda: "until Ctrl-C" in output.read_text() or process.poll() is not None, 240, "serving")
        process.send_signal(signal.SIGINT)
        assert process.wait(90) == 0, output.read_text()[-3000:]
        assert not left_in(folder)
    finally:
        process.kill()
        process.wait()
