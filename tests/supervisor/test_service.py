"""The real supervisor with processes that greet and misbehave like services."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from noria.proto.base import Service
from noria.shared.actor.inspect import inspect_all
from noria.shared.config.config import RuntimeSettings

FAKES = Path(__file__).resolve().parents[1] / "fakes"
SERVICES = tuple(service for service in Service if service is not Service.SUPERVISOR)
STOP_ORDER = ["admission", "gateway", "scheduler", "executor", "detokenizer"]


class Supervised:
    """One supervisor with fake children, in a folder of its own."""

    def __init__(self, folder: Path, misbehaviour: str = "", stderr: int | None = None, **runtime: object) -> None:
        self.runtime_dir = folder / "run"
        self.model = folder / "model"
        self.model.mkdir(exist_ok=True)
        (self.model / "config.json").write_text("{}")
        config = folder / "noria.json"
        settings = {"dir": str(self.runtime_dir), "stop_timeout_s": 5.0, "heartbeat_s": 0.2, **runtime}
        config.write_text(
            json.dumps({"model": {"name": str(self.model)}, "runtime": settings, "http": {"address": "127.0.0.1:1"}})
        )
        self.output = folder / f"output-{time.monotonic_ns()}"
        environment = {**os.environ, "CHILD_MISBEHAVIOUR": misbehaviour, "NORIA_LOG_LEVEL": "info"}
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, str(FAKES / "supervised.py"), "--config", str(config)],
                stdout=output, stderr=output if stderr is None else stderr, stdin=subprocess.DEVNULL, env=environment,
            )  # fmt: skip

    def text(self) -> str:
        return self.output.read_text()

    def ready(self) -> "Supervised":
        self.wait(lambda: "noria is ready after" in self.text())
        return self

    def wait(self, condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert self.process.poll() is None or condition(), self.text()
            assert time.monotonic() < deadline, self.text()
            time.sleep(0.02)

    def snapshots(self) -> dict[Service, dict[str, Any]]:
        answers = inspect_all(RuntimeSettings(dir=str(self.runtime_dir)), timeout_s=20.0)
        return {service: {"pid": each.pid, **json.loads(each.json)} for service, each in answers.items()}

    def services(self) -> dict[str, Any]:
        services = self.snapshots()[Service.SUPERVISOR]["services"]
        assert isinstance(services, dict)
        return services

    def spawned(self) -> dict[str, int]:
        events = [json.loads(line) for line in self.text().splitlines() if line.startswith("{")]
        return {event["child"]: event["pid"] for event in events if event["event"] == "service spawned"}

    def knows_its_supervisor(self, child: str) -> bool:
        """Whether a child has been greeted, so that it can say what becomes of it."""
        events = [json.loads(line) for line in self.text().splitlines() if line.startswith("{")]
        joined = [each["service"] for each in events if each.get("peer") == "supervisor"]
        return child in joined

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pid in self.spawned().values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="noria-") as path:
        yield Path(path)


@contextlib.contextmanager
def supervised(
    folder: Path, misbehaviour: str = "", stderr: int | None = None, **runtime: object
) -> Iterator[Supervised]:
    stack = Supervised(folder, misbehaviour, stderr, **runtime)
    try:
        yield stack
    finally:
        stack.end()


def closed(text: str) -> list[str]:
    return [line.removeprefix("closed ") for line in text.splitlines() if line.startswith("closed ")]


def test_sigterm_stops_the_children_in_order_and_leaves_nothing_behind(folder: Path) -> None:
    with supervised(folder) as stack:
        stack.ready()
        stack.process.terminate()
        assert stack.process.wait(60) == 0, stack.text()
        assert closed(stack.text()) == STOP_ORDER
        assert {path.suffix for path in stack.runtime_dir.iterdir()} == {".lock"}


def test_children_run_in_sessions_and_folders_of_their_own_and_their_state_is_known(folder: Path) -> None:
    with supervised(folder) as stack:
        snapshots = stack.ready().snapshots()
        for service in SERVICES:
            child = snapshots[service]
            assert child["session"] == child["pid"] == stack.spawned()[service.value]
            assert child["cwd"] == str(stack.runtime_dir)
            assert child["noria"] == []
        reported = snapshots[Service.SUPERVISOR]["services"]
        assert {name: each["state"] for name, each in reported.items()} == {each.value: "ready" for each in SERVICES}
        assert {each["incarnation"] for each in reported.values()} == {
            snapshots[service]["incarnation"] for service in SERVICES
        }


def test_a_child_that_dies_is_started_again_and_the_others_are_left_alone(folder: Path) -> None:
    with supervised(folder) as stack:
        before = stack.ready().spawned()
        for victim in ("scheduler", "gateway"):
            os.kill(before[victim], signal.SIGKILL)
        stack.wait(
            lambda: {"scheduler", "gateway"} == {name for name, pid in stack.spawned().items() if pid != before[name]}
        )
        stack.wait(lambda: all(each["state"] == "ready" for each in stack.services().values()))
        assert {name: each["pid"] for name, each in stack.services().items()} == stack.spawned()
        stack.process.terminate()
        assert stack.process.wait(60) == 0, stack.text()
        assert closed(stack.text()) == STOP_ORDER


def test_a_child_that_cannot_start_ends_the_start(folder: Path) -> None:
    with supervised(folder, "gateway=exit2") as stack:
        assert stack.process.wait(60) == 2, stack.text()
        assert "noria: gateway" in stack.text()
        assert stack.text().count("a mistake of yours") == 1


def test_a_crash_loop_ends_the_stack_and_says_how_often_and_what_was_said_last(folder: Path) -> None:
    with supervised(folder, "gateway=bug", restart_pause_s=0.05, crash_loop_deaths=3) as stack:
        assert stack.process.wait(60) == 1, stack.text()
        assert "noria: gateway died 3 times in a row without a step in between" in stack.text()
        assert stack.text().rstrip().endswith("\n  RuntimeError: a bug of ours")
        assert closed(stack.text())[-4:] == [name for name in STOP_ORDER if name != "gateway"]
        assert {path.suffix for path in stack.runtime_dir.iterdir()} == {".lock"}


def test_a_child_that_hangs_is_killed_and_started_again(folder: Path) -> None:
    with supervised(folder, hang_timeout_s=3.0) as stack:
        before = stack.ready().spawned()
        os.kill(before["detokenizer"], signal.SIGSTOP)
        stack.wait(lambda: stack.spawned()["detokenizer"] != before["detokenizer"])
        assert "gave no sign of life for" in stack.text()
        assert {name for name, pid in stack.spawned().items() if pid != before[name]} == {"detokenizer"}


def test_a_child_that_takes_longer_to_end_than_a_hung_one_may_be_silent_is_not_taken_for_hung(folder: Path) -> None:
    with supervised(folder, "scheduler=lingers", hang_timeout_s=2.0) as stack:
        before = stack.ready().spawned()
        stack.wait(lambda: stack.knows_its_supervisor("scheduler"))
        os.kill(before["scheduler"], signal.SIGTERM)
        stack.wait(lambda: stack.spawned()["scheduler"] != before["scheduler"])
        assert '"killing service"' not in stack.text()
        assert "this is where it hangs" not in stack.text()
        stack.wait(lambda: stack.services()["scheduler"]["state"] == "ready")
        assert stack.services()["scheduler"]["deaths_in_a_row"] == 0


def test_a_child_that_never_ends_what_it_began_to_end_is_killed_after_its_time(folder: Path) -> None:
    with supervised(folder, "scheduler=lingers", hang_timeout_s=2.0, stop_timeout_s=0.5) as stack:
        before = stack.ready().spawned()
        stack.wait(lambda: stack.knows_its_supervisor("scheduler"))
        os.kill(before["scheduler"], signal.SIGTERM)
        stack.wait(lambda: stack.spawned()["scheduler"] != before["scheduler"])
        assert "did not end in the time that it may take" in stack.text(), stack.text()


def test_a_child_that_hangs_before_it_says_anything_is_not_waited_for_as_long_as_a_start_may_take(folder: Path) -> None:
    with supervised(folder, "detokenizer=mute", hang_timeout_s=1.5, restart_pause_s=0.05) as stack:
        assert stack.process.wait(60) == 1, stack.text()
        assert "noria: detokenizer died 3 times in a row" in stack.text()
        assert "gave no sign of life for" in stack.text()


def test_an_executor_that_works_without_an_end_is_killed_and_started_again(folder: Path) -> None:
    with supervised(folder, "executor=stuck", hang_timeout_s=2.0) as stack:
        before = stack.ready().spawned()
        stack.wait(lambda: stack.spawned()["executor"] != before["executor"])
        assert "has made no progress for" in stack.text()


def test_a_child_that_does_not_stop_is_killed_after_its_time(folder: Path) -> None:
    with supervised(folder, "executor=deaf", stop_timeout_s=0.5) as stack:
        stack.ready().process.terminate()
        assert stack.process.wait(60) == 1
        assert "executor did not stop within 0.5 s and was killed" in stack.text()
        assert closed(stack.text()) == [name for name in STOP_ORDER if name != "executor"]


def test_a_second_signal_kills_at_once(folder: Path) -> None:
    with supervised(folder, "gateway=deaf", stop_timeout_s=60.0) as stack:
        stack.ready().process.send_signal(signal.SIGINT)
        stack.wait(lambda: '"stopping"' in stack.text())
        stack.process.send_signal(signal.SIGINT)
        assert stack.process.wait(60) == 1
        assert "second signal" in stack.text()


def test_a_start_that_takes_too_long_names_who_is_late(folder: Path) -> None:
    for start_timeout_s in (3, 12, 48):  # a busy machine may be late with others, too
        with supervised(folder, "executor=slow", start_timeout_s=start_timeout_s) as stack:
            assert stack.process.wait(120) == 1
            if f"not ready within {start_timeout_s} s: executor;" in stack.text():
                return
    raise AssertionError(stack.text())


def test_a_second_supervisor_is_refused_and_the_first_goes_on(folder: Path) -> None:
    with supervised(folder) as stack:
        stack.ready()
        with supervised(folder) as second:
            assert second.process.wait(60) == 2
            assert f"as process {stack.process.pid}, serving http://127.0.0.1:1" in second.text()
        assert len(stack.snapshots()) == len(Service)


def test_a_new_supervisor_takes_over_the_children_of_a_killed_one_and_replaces_the_dead(folder: Path) -> None:
    with supervised(folder) as first:
        before = first.ready().spawned()
        first.process.kill()
        first.process.wait()
        os.kill(before["executor"], signal.SIGKILL)
        with supervised(folder) as second:
            second.ready()
            assert list(second.spawned()) == ["executor"]
            pids = {name: each["pid"] for name, each in second.services().items()}
            assert pids == {**before, **second.spawned()}
            # One that is not its own child is watched, replaced and stopped all the same.
            os.kill(before["scheduler"], signal.SIGKILL)
            second.wait(lambda: "scheduler" in second.spawned())
            second.wait(lambda: all(each["state"] == "ready" for each in second.services().values()))
            second.process.terminate()
            assert second.process.wait(60) == 0, second.text()
            stopped = {name for name in STOP_ORDER if name in closed(first.text()) + closed(second.text())}
            assert stopped == set(STOP_ORDER)


def test_children_of_a_killed_supervisor_that_run_by_another_configuration_are_named_and_stopped_by_down(
    folder: Path,
) -> None:
    with supervised(folder) as stack:
        pids = stack.ready().spawned()
        stack.process.kill()
        stack.process.wait()
        with supervised(folder, heartbeat_s=0.3) as second:
            assert second.process.wait(60) == 2
            assert f"scheduler ({pids['scheduler']})" in second.text()
            assert "(runtime.heartbeat_s)" in second.text()
            assert "noria down" in second.text()
        noria = [sys.executable, "-c", "from noria.cli import main; raise SystemExit(main())"]
        done = subprocess.run(
            [*noria, "down", "--runtime-dir", str(stack.runtime_dir)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert closed(stack.text()) == [service.value for service in SERVICES]
        assert "gateway" in done.stdout
        with supervised(folder) as third:
            third.ready()


def test_a_stop_first_drains_and_waits_until_that_is_done(folder: Path) -> None:
    with supervised(folder, drain_timeout_s=30.0) as stack:
        stack.ready().process.terminate()
        assert stack.process.wait(60) == 0, stack.text()
        assert "drains admission 30000" in stack.text().splitlines()


def test_a_hang_up_reads_classes_and_tenants_again_and_tells_the_children(folder: Path) -> None:
    with supervised(folder) as stack:
        stack.ready()
        file = folder / "noria.json"
        effective = stack.runtime_dir / "effective.json"

        def change(tenants: dict[str, Any]) -> None:
            file.write_text(json.dumps({**json.loads(file.read_text()), "tenants": tenants}))
            stack.process.send_signal(signal.SIGHUP)

        change({"acme": {"weight": 0}})
        stack.wait(lambda: "configuration not reloaded" in stack.text())
        assert "tenants.acme.weight" in stack.text()
        assert json.loads(effective.read_text())["tenants"] == {}
        change({"acme": {"weight": 2.0}})
        stack.wait(lambda: stack.text().count('"configuration reloaded"') == 1)
        stack.wait(lambda: "acme" in json.loads(effective.read_text())["tenants"])
        assert json.loads(effective.read_text())["tenants"]["acme"]["weight"] == 2.0
        assert len(stack.snapshots()) == len(Service)


def test_a_terminal_that_is_gone_stops_the_stack_and_one_that_is_there_does_not(folder: Path) -> None:
    keyboard, screen = os.openpty()
    with supervised(folder, stderr=screen) as stack:
        os.close(screen)
        os.set_blocking(keyboard, False)

        def shown() -> bytes:
            with contextlib.suppress(BlockingIOError):
                seen.extend(os.read(keyboard, 65536))
            return bytes(seen)

        seen = bytearray()
        stack.wait(lambda: bool(shown()) and "noria is ready after" in stack.text())
        stack.process.send_signal(signal.SIGHUP)
        stack.wait(lambda: b"configuration reloaded" in shown())
        os.close(keyboard)
        stack.process.send_signal(signal.SIGHUP)
        assert stack.process.wait(60) == 0
