"""The command line: what it accepts, what it says of mistakes, what it hands over."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from noria.cli.app import noria, run
from noria.cli.config_handover import environment_without_options, render_toml, write_config_file
from noria.proto.base import Service
from noria.shared.config.config import Config
from noria.shared.config.options import options
from noria.shared.config.sources import load

EVERYTHING = {
    "model.name": 'a "quoted" \\ name\x7f\n',
    "model.served_names": ("one", "two, three"),
    "runtime.hosts": {"executor": "10.0.0.2"},
    "runtime.insecure_tcp": True,
    "cache.max_memory_percent": 0.25,
    "executor.threads": 3,
}


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ.keys() - environment_without_options().keys():
        monkeypatch.delenv(name)


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command line that must be refused with one line and status 2; returns the line."""
    assert run(arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("noria: ")
    assert output.err.count("\n") == 1
    return output.err


def test_without_a_command_the_help_is_shown() -> None:
    result = CliRunner().invoke(noria, [])
    assert result.exit_code == 0
    for command in (
        "up",
        "down",
        "drain",
        "restart",
        "ps",
        "generate",
        "chat",
        "models",
        "config",
        "scheduler",
        "gateway",
    ):
        assert command in result.output


def test_the_version_is_the_packages() -> None:
    result = CliRunner().invoke(noria, ["--version"])
    assert result.output.startswith("noria 0.")


def test_every_service_but_the_supervisor_can_be_run_alone() -> None:
    for service in Service:
        assert (service.value in noria.commands) == (service is not Service.SUPERVISOR)


def test_every_declared_flag_is_a_flag_of_up_and_of_each_service() -> None:
    declared = {flag for option in options() for flag in option.flags} | {"--config"}
    for command in ("up", "config", "scheduler"):
        accepted = {flag for parameter in noria.commands[command].params for flag in parameter.opts}
        assert accepted >= declared


def test_what_is_on_by_default_can_be_turned_off(capsys: pytest.CaptureFixture[str]) -> None:
    for flag in ("--no-allow-block-sharing", "--no-enable-prefix-caching"):
        assert run(["config", "--json", flag]) == 0
        assert json.loads(capsys.readouterr().out)["config"]["cache"]["allow_block_sharing"] is False


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["uup"], "did you mean up?"),
        (["shceduler"], "did you mean scheduler?"),
        (["qqqqqq"], "known: up"),
        (["config", "--max-batch-tokns", "5"], "did you mean --max-batch-tokens?"),
        (["config", "--max-batch-tokens", "0"], "--max-batch-tokens: scheduler.max_batch_tokens"),
        (["config", "--max-batch-tokens", "many"], "--max-batch-tokens: scheduler.max_batch_tokens"),
        (["config", "--dtype", "float8"], "'bfloat16'"),
        (["config", "--config", "/nowhere.toml"], "/nowhere.toml"),
        (["generate"], "PROMPT"),
        (["generate", "x", "--temperature", "-1"], "--temperature"),
        (["generate", "x", "--logit-bias", "a=b"], "42=-1.5"),
        (["generate", "x", "--presence-penalty", "3"], "--presence-penalty"),
        (["up", "--once"], "--prompt"),
        (["models", "pull", "./nowhere"], "nowhere"),
        (["ps", "janitor"], "janitor"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_would_be_right(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert words in told(capsys, *arguments)


def test_a_stack_that_does_not_run_is_said_to(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["ps", "--runtime-dir", str(tmp_path), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["service"] for row in rows] == [service.value for service in Service]
    assert {row["state"] for row in rows} == {"absent"}
    assert run(["ps", "scheduler", "--runtime-dir", str(tmp_path)]) == 1
    capsys.readouterr()
    assert run(["down", "--runtime-dir", str(tmp_path)]) == 0
    assert "nothing runs" in capsys.readouterr().out
    for command in (["drain"], ["restart", "all"], ["restart", "scheduler", "gateway"]):
        assert run([*command, "--runtime-dir", str(tmp_path)]) == 2
        assert f"no `noria up` runs in {tmp_path}" in capsys.readouterr().err
    assert run(["restart", "supervisor"]) == 2
    assert "'supervisor' is not one of" in capsys.readouterr().err


def test_config_prints_toml_that_reads_back_and_says_where_each_option_came_from(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "noria.toml"
    file.write_text("[cache]\nnum_blocks = 9\n")
    monkeypatch.setenv("NORIA_LOG_LEVEL", "debug")
    assert run(["config", "--config", str(file), "--max-num-seqs", "7", "--served-model-name", "a"]) == 0
    text = capsys.readouterr().out
    assert f"num_blocks = 9  # {file}" in text
    assert 'level = "debug"  # NORIA_LOG_LEVEL' in text
    assert "max_requests_per_batch = 7  # --max-requests-per-batch" in text
    again = tmp_path / "again.toml"
    again.write_text(text)
    monkeypatch.delenv("NORIA_LOG_LEVEL")
    flags = {"scheduler.max_requests_per_batch": 7, "model.served_names": ("a",)}
    assert load(again) == load(file, flags, {"NORIA_LOG_LEVEL": "debug"})


def test_config_prints_json_with_origins(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "--json", "--insecure-tcp", "--gpu-memory-utilization", "0.5"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["config"]["runtime"]["insecure_tcp"] is True
    assert found["config"]["cache"]["max_memory_percent"] == 0.5
    assert found["origins"] == {
        "runtime.insecure_tcp": "--insecure-tcp",
        "cache.max_memory_percent": "--max-memory-percent",
    }


def test_a_list_may_be_given_by_repeating_its_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "--json", "--served-model-name", "a", "--served-model-name", "b"]) == 0
    assert json.loads(capsys.readouterr().out)["config"]["model"]["served_names"] == ["a", "b"]


def test_a_configuration_handed_over_is_the_same_on_the_other_side() -> None:
    config = load(None, EVERYTHING, {})
    descriptor = write_config_file(config)
    code = "import sys; from noria.shared.config.sources import load; print(hash(repr(load(sys.argv[1]))))"
    command = [sys.executable, "-c", code, f"/dev/fd/{descriptor}"]
    here = subprocess.run(
        command,
        pass_fds=(descriptor,),
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "0"},
    )
    expected = subprocess.run(
        [sys.executable, "-c", f"print(hash({repr(config)!r}))"],
        capture_output=True, text=True, check=True, env={**os.environ, "PYTHONHASHSEED": "0"},
    )  # fmt: skip
    assert here.stdout == expected.stdout


def test_every_default_survives_the_way_through_toml(tmp_path: Path) -> None:
    path = tmp_path / "noria.toml"
    path.write_text(render_toml(Config()))
    assert load(path, {}, {}) == Config()


def test_a_service_command_becomes_the_service_and_brings_the_configuration(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from noria.cli import main; raise SystemExit(main())", "detokenizer"]
    flags = ["--runtime-dir", str(tmp_path), "--model", "./missing-model"]
    done = subprocess.run(
        [*command, *flags], capture_output=True, text=True, check=False, env={**os.environ, "NORIA_MODEL_NAME": "other"}
    )
    # The refusal comes from the service itself: it has the flag, and the variable did not win over it.
    assert done.returncode == 2
    assert done.stderr == "noria detokenizer: there is no model folder ./missing-model\n"


def test_the_command_line_starts_without_heavy_imports() -> None:
    code = (
        "import sys; import noria.cli.app\n"
        "heavy = {'torch', 'transformers', 'tokenizers', 'numpy', 'zmq', 'rich', 'asyncio', 'starlette', 'uvicorn'}\n"
        "print(*sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_in_the_base_install_the_command_says_what_to_install() -> None:
    code = "import sys; sys.modules['click'] = None; from noria.cli import main; raise SystemExit(main())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert (
        done.stderr == "noria: this command needs the full install: pip install '.[server]' in noria's source folder\n"
    )
