"""Starting, refusing to start twice, stopping, and dying with a named cause."""

import http.client
import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from e2e.harness import LENIENT, NORIA, Stack, stack, wait_until

SERVICES = ("gateway", "admission", "scheduler", "executor", "detokenizer")


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_ctrl_c_is_one_orderly_stop_that_leaves_nothing_behind(tiny_model: Path) -> None:
    with stack(str(tiny_model)) as running:
        pids = running.pids()
        assert set(SERVICES) <= set(pids)
        for name in SERVICES:
            assert Path(f"/proc/{pids[name]}/cmdline").read_bytes().startswith(f"noria: {name}".encode())
        assert running.stop() == 0
        assert not [pid for pid in pids.values() if alive(pid)]
        assert not list(running.runtime_dir.glob("*.sock"))
        assert "Traceback" not in running.log()


def test_ps_tells_who_is_there_and_who_does_not_answer(tiny_model: Path) -> None:
    with stack(str(tiny_model), environment=LENIENT) as running:
        state = running.state()
        expected = [
            {"service": name, "pid": state[name]["pid"], "incarnation": state[name]["incarnation"], "state": "ready"}
            for name in (*SERVICES, "supervisor")
        ]
        # On a busy machine one or another may not answer in time to the first question.
        wait_until(lambda: running.ps() == expected, 60, "all are ready")
        with running.held("detokenizer"):
            silent = [{**row, "state": "silent"} if row["service"] == "detokenizer" else row for row in expected]
            wait_until(lambda: running.ps() == silent, 60, "all but one are ready")


def test_the_death_of_a_service_brings_back_that_service_alone(tiny_model: Path) -> None:
    with stack(str(tiny_model)) as running:
        for victim in SERVICES:
            before = running.pids()
            os.kill(before[victim], signal.SIGKILL)

            def back(before: dict[str, int] = before, victim: str = victim) -> bool:
                rows = {row["service"]: row for row in running.ps()}
                others = all(rows[name]["pid"] == pid for name, pid in before.items() if name != victim)
                return others and rows[victim]["pid"] not in (0, before[victim]) and rows[victim]["state"] == "ready"

            wait_until(back, 60, f"a new {victim}")
        wait_until(running.ready, 60, "ready again")
        assert running.stop() == 0, running.log()[-2000:]


def test_a_second_stack_in_the_same_folder_is_refused_naming_the_owner(tiny_model: Path) -> None:
    with stack(str(tiny_model)) as running:
        command = [
            str(NORIA),
            "up",
            "--model",
            str(tiny_model),
            "--runtime-dir",
            str(running.runtime_dir),
            "--http",
            "127.0.0.1:0",
        ]
        second = subprocess.run(command, capture_output=True, text=True, timeout=120, env=running.environment)
        assert second.returncode == 2
        assert str(running.process.pid) in second.stderr
        assert running.get("/ready")[0] == 200


def test_services_that_outlive_their_supervisor_are_taken_over_by_the_next(tiny_model: Path) -> None:
    with stack(str(tiny_model)) as running:
        before = running.pids()
        os.kill(running.process.pid, signal.SIGKILL)
        running.process.wait(60)
        other = [*running.command, "--num-blocks", "777"]
        refused = subprocess.run(other, capture_output=True, text=True, timeout=120, env=running.environment)
        assert refused.returncode == 2
        assert str(before["scheduler"]) in refused.stderr
        assert "cache.num_blocks" in refused.stderr
        assert "noria down" in refused.stderr
        running.start()
        running.wait_ready()
        assert {name: pid for name, pid in running.pids().items() if name in SERVICES} == {
            name: before[name] for name in SERVICES
        }
        # The door was handed over, too: who comes while there is no gateway waits for the next one.
        os.kill(before["gateway"], signal.SIGKILL)
        wait_until(lambda: not alive(before["gateway"]), 60, "the gateway dead")
        waiting = http.client.HTTPConnection("127.0.0.1", running.port, timeout=120)
        waiting.request("GET", "/health")
        assert waiting.getresponse().status in (200, 503)  # as soon as it listens, perhaps before it knows anybody
        waiting.close()
        assert running.pids()["gateway"] != before["gateway"]
        assert running.noria("down").returncode == 0
        assert running.process.wait(60) == 0
        assert not [name for name in SERVICES if alive(before[name])]


def test_services_that_outlive_their_supervisor_can_be_stopped(tiny_model: Path) -> None:
    with stack(str(tiny_model)) as running:
        pids = running.pids()
        os.kill(running.process.pid, signal.SIGKILL)
        running.process.wait(60)
        assert running.noria("down").returncode == 0
        assert not [name for name in SERVICES if alive(pids[name])]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["up", "--model", "no-such-model"], "an alias (smollm2"),
        (["up", "--model", "./nowhere"], "no model folder"),
        (["up", "--model", "missing.gguf"], "no GGUF file"),
        (["up", "--max-batch-tokns", "5"], "--max-batch-tokens"),
        (["up", "--max-batch-tokens", "0"], "max_batch_tokens"),
        (["up", "--dtype", "float8"], "bfloat16"),
        (["uup"], "up"),
    ],
)
def test_a_mistake_in_the_command_says_what_to_do(arguments: list[str], expected: str, tmp_path: Path) -> None:
    command = [str(NORIA), *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, cwd=tmp_path, env={**os.environ, "HF_HUB_OFFLINE": "1"}
    )
    assert done.returncode == 2
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_in_use_stops_the_start_and_is_named(tiny_model: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        running = Stack(str(tiny_model), "--http", f"127.0.0.1:{port}")
        try:
            assert running.process.wait(120) == 2
            assert str(port) in running.log()
            assert "Traceback" not in running.log()
        finally:
            running.discard()


def test_a_cache_too_small_for_one_request_ends_the_start_with_the_numbers(tiny_model: Path) -> None:
    running = Stack(str(tiny_model), "--num-blocks", "20")
    try:
        assert running.process.wait(120) == 2
        log = running.log()
        assert "hold 288 tokens: lower --max-model-tokens to at most 288 or raise --num-blocks to at least 130\n" in log
        assert "Traceback" not in log
        assert log.count("noria executor: ") == 1, "it was started again"
    finally:
        running.discard()


def test_a_runtime_folder_whose_sockets_would_have_too_long_paths_is_refused(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 100)
    done = subprocess.run([str(NORIA), "up", "--runtime-dir", str(long)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "107" in done.stderr
