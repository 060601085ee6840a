"""Where options come from, who wins, and what is refused."""

from pathlib import Path

import pytest

from noria.shared.config import Config
from noria.shared.config_sources import dump, load, options, origins, write
from noria.shared.errors import UserError


def test_without_any_source_everything_is_at_its_default() -> None:
    assert load(None, {}, {}) == Config()


def test_flags_win_over_variables_and_variables_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "noria.toml"
    file.write_text("[scheduler]\nmax_batch_tokens = 1\nmax_requests_per_batch = 1\nsteps_in_flight = 1\n")
    environment = {"NORIA_SCHEDULER_MAX_BATCH_TOKENS": "2", "NORIA_SCHEDULER_MAX_REQUESTS_PER_BATCH": "2"}
    config = load(file, {"scheduler.max_batch_tokens": 3}, environment)
    assert config.scheduler.max_batch_tokens == 3
    assert config.scheduler.max_requests_per_batch == 2
    assert config.scheduler.steps_in_flight == 1
    assert origins(file, {"scheduler.max_batch_tokens": 3}, environment) == {
        "scheduler.max_batch_tokens": "--max-batch-tokens",
        "scheduler.max_requests_per_batch": "NORIA_SCHEDULER_MAX_REQUESTS_PER_BATCH",
        "scheduler.steps_in_flight": str(file),
    }


def test_a_variable_names_the_file_where_no_flag_does(tmp_path: Path) -> None:
    file = tmp_path / "noria.toml"
    file.write_text('[model]\nname = "other"\n')
    assert load(None, {}, {"NORIA_CONFIG": str(file)}).model.name == "other"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[scheduler]\nmax_batch_tokns = 1", ("scheduler.max_batch_tokns", "did you mean max_batch_tokens?")),
        ("[schedular]\n", ("[schedular]", "did you mean scheduler?")),
        ("scheduler = 3", ("scheduler must be a section",)),
        ("[scheduler]\nmax_batch_tokens = 0", ("scheduler.max_batch_tokens", ">= 1")),
        ('[scheduler]\nmax_batch_tokens = "many"', ("scheduler.max_batch_tokens", "int")),
        ('[model]\ndtype = "float8"', ("model.dtype", "float8")),
        ("[model", ("not valid",)),
        ("[cache]\nmax_memory_percent = 1.5", ("cache.max_memory_percent", "<= 1")),
        ("[executor]\nranks = 2", ("executor.ranks", "<= 1")),
    ],
)
def test_a_mistake_in_the_file_names_file_and_key(tmp_path: Path, text: str, words: tuple[str, ...]) -> None:
    file = tmp_path / "noria.toml"
    file.write_text(text)
    with pytest.raises(UserError) as caught:
        load(file, {}, {})
    for word in (str(file), *words):
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("NORIA_SCHEDULER_POLICY", "lifo", ("NORIA_SCHEDULER_POLICY", "scheduler.policy")),
        ("NORIA_SCHEDULER_POLCY", "fifo", ("did you mean NORIA_SCHEDULER_POLICY?",)),
        ("NORIA_EXECUTOR_THREADS", "two", ("NORIA_EXECUTOR_THREADS", "executor.threads")),
        ("NORIA_RUNTIME_HEARTBEAT_S", "0", ("NORIA_RUNTIME_HEARTBEAT_S", "> 0")),
        ("NORIA_RUNTIME_INSECURE_TCP", "perhaps", ("NORIA_RUNTIME_INSECURE_TCP",)),
    ],
)
def test_a_mistake_in_a_variable_names_it(name: str, text: str, words: tuple[str, ...]) -> None:
    with pytest.raises(UserError) as caught:
        load(None, {}, {name: text})
    for word in words:
        assert word in str(caught.value)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(UserError, match=r"nowhere\.toml"):
        load("/nowhere.toml", {}, {})


def test_lists_mappings_switches_and_absent_numbers_are_read_from_variables() -> None:
    config = load(
        None,
        {},
        {
            "NORIA_MODEL_SERVED_NAMES": "one, two",
            "NORIA_RUNTIME_HOSTS": "executor=10.0.0.2,scheduler=10.0.0.3",
            "NORIA_RUNTIME_INSECURE_TCP": "true",
            "NORIA_CACHE_NUM_BLOCKS": "auto",
            "NORIA_EXECUTOR_THREADS": "3",
        },
    )
    assert config.model.served_names == ("one", "two")
    assert config.runtime.hosts == {"executor": "10.0.0.2", "scheduler": "10.0.0.3"}
    assert config.runtime.insecure_tcp is True
    assert config.cache.num_blocks is None
    assert config.executor.threads == 3


def test_the_configuration_written_for_children_is_private_and_reads_back_equal(tmp_path: Path) -> None:
    path = tmp_path / "effective.json"
    config = load(None, {"model.served_names": ("a",), "runtime.hosts": {"executor": "x"}}, {})
    write(config, path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert load(path, {}, {}) == config


def test_every_option_has_help_and_no_flag_is_declared_twice() -> None:
    flags = [flag for option in options() for flag in option.flags]
    assert len(flags) == len(set(flags))
    assert all(option.help.endswith(".") for option in options())
    assert {f"{option.section}.{option.key}" for option in options()} == {
        f"{section}.{key}" for section, values in dump(Config()).items() for key in values
    }


def test_flags_of_other_engines_are_aliases() -> None:
    flags = {flag for option in options() for flag in option.flags}
    assert flags >= {
        "--max-num-batched-tokens",
        "--max-num-seqs",
        "--gpu-memory-utilization",
        "--tensor-parallel-size",
        "--max-model-len",
        "--dtype",
        "--served-model-name",
    }
