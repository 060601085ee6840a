"""Where options come from, who wins, and what is refused."""

from pathlib import Path

import msgspec
import pytest

from noria.shared.config.config import Config
from noria.shared.config.options import KEYED, REMOVED, options
from noria.shared.config.sources import dump, load, origins, write
from noria.shared.config.tenants import BUILT_IN, default_class_of
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


def test_requests_outlive_a_gateway_that_hangs_until_there_is_another(tmp_path: Path) -> None:
    assert load(None, {}, {}).gateway_grace_s == 40
    file = tmp_path / "noria.toml"
    file.write_text("[runtime]\nhang_timeout_s = 100\nrestart_pause_s = 2\npeer_timeout_s = 3")
    assert load(file, {}, {}).gateway_grace_s == 113
    assert load(file, {"http.gateway_grace_s": 200.0}, {}).gateway_grace_s == 200


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
        ("[runtime]\nhang_timeout_s = 1", ("runtime.hang_timeout_s", "at least 1.5 s", "runtime.heartbeat_s")),
        ("[runtime]\nheartbeat_s = 12", ("runtime.hang_timeout_s", "at least 18 s", "runtime.heartbeat_s")),
        (
            "[runtime]\nheartbeat_s = 3\npeer_timeout_s = 4",
            ("runtime.peer_timeout_s", "at least 4.5 s", "runtime.heartbeat_s"),
        ),
        ("[http]\ngateway_grace_s = 39", ("http.gateway_grace_s", "at least 40 s", "runtime.hang_timeout_s")),
        (
            "[http]\ngateway_grace_s = 40\n[runtime]\nhang_timeout_s = 16",
            ("http.gateway_grace_s", "at least 41 s", "runtime.hang_timeout_s"),
        ),
        ("[runtime]\nhang_timeout_s = 90_000", ("http.gateway_grace_s", "86400 s at most", "runtime.hang_timeout_s")),
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
        f"{section}.{key}" for section, values in dump(Config()).items() if section not in KEYED for key in values
    }


@pytest.mark.parametrize("path", REMOVED)
def test_an_option_of_an_earlier_version_is_refused_with_what_holds_instead(tmp_path: Path, path: str) -> None:
    section, _, key = path.partition(".")
    file = tmp_path / "noria.toml"
    file.write_text(f"[{section}]\n{key} = 1\n")
    with pytest.raises(UserError) as of_file:
        load(file, {}, {})
    assert str(of_file.value) == f"{file}: {path} is no option any more: {REMOVED[path]}; leave it out"
    name = f"NORIA_{section}_{key}".upper()
    with pytest.raises(UserError) as of_variable:
        load(None, {}, {name: "1"})
    assert str(of_variable.value) == f"environment variable {name} is no option any more: {REMOVED[path]}; leave it out"


def test_a_service_starts_again_by_the_file_of_a_supervisor_of_an_earlier_version(tmp_path: Path) -> None:
    path = tmp_path / "effective.json"
    config = load(None, {"runtime.supervised": True}, {})
    older = dump(config)
    for section, _, key in (each.partition(".") for each in REMOVED):
        older[section][key] = 7
    path.write_bytes(msgspec.json.encode(older))
    assert load(path, {}, {}) == config


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


_KEY = "sha256:" + "0" * 64


def test_a_file_overrides_single_fields_of_built_in_classes_and_adds_classes_and_tenants(tmp_path: Path) -> None:
    file = tmp_path / "noria.toml"
    file.write_text(
        "[classes.interactive]\nweight = 9\n[classes.nightly]\nrank = 0\n"
        f'[tenants.acme]\nkeys = ["{_KEY}"]\nclasses = ["nightly", "batch"]\ntokens_per_minute = 600\n'
    )
    config = load(file, {}, {})
    assert config.classes["interactive"] == msgspec.structs.replace(BUILT_IN["interactive"], weight=9.0)
    assert list(config.classes) == ["interactive", "standard", "batch", "admin", "nightly"]
    assert config.classes["batch"] == BUILT_IN["batch"]
    assert config.tenants["acme"].tokens_per_minute == 600
    assert default_class_of(config.tenants["acme"], config.classes) == "nightly"
    assert (config.has_policy, config.policy) == (True, "fair")
    assert origins(file, {}, {})["tenants.acme.tokens_per_minute"] == str(file)


def test_without_classes_and_tenants_the_policy_is_fifo_and_with_them_the_named_one_still_wins(tmp_path: Path) -> None:
    assert (Config().has_policy, Config().policy) == (False, "fifo")
    file = tmp_path / "noria.toml"
    file.write_text("[tenants.acme]\n")
    assert load(file, {"scheduler.policy": "prefill_first"}, {}).policy == "prefill_first"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[classes.interactive]\nwieght = 1", ("classes.interactive.wieght", "did you mean weight?")),
        ("[classes.interactive]\nweight = 0", ("classes.interactive.weight", "> 0")),
        ("[classes.Loud]\n", ("classes.Loud", "match")),
        ("[classes]\ninteractive = 3", ("classes.interactive must be a section",)),
        ('[tenants.acme]\nclasses = ["intractive"]', ("tenants.acme.classes", "did you mean interactive?")),
        ('[tenants.acme]\ndefault_class = "bulk"', ("tenants.acme.default_class", "no class bulk")),
        (
            '[tenants.acme]\nclasses = ["batch"]\ndefault_class = "standard"',
            ("tenants.acme.default_class", "not among"),
        ),
        ('[tenants.acme]\ndefault_class = "admin"', ("tenants.acme.default_class", "not among")),
        ('[tenants.acme]\nkeys = ["secret"]', ("tenants.acme.keys", "sha256")),
        (
            f'[tenants.a]\nkeys = ["{_KEY}"]\n[tenants.b]\nkeys = ["{_KEY}"]',
            ("tenants.b.keys", "belongs to tenants.a"),
        ),
        ("[tenants.acme]\ntokens_per_minute = 0", ("tenants.acme.tokens_per_minute", ">= 1")),
        ("[tenant.acme]\n", ("[tenant]", "did you mean tenants?")),
        (
            "[classes.admin]\nreserved_slots = 0",
            ("classes.admin.reserved_slots", "isolated", "at least 1"),
        ),
        (
            "[tenants.acme]\n[scheduler]\nmax_requests_per_batch = 1",
            ("scheduler.max_requests_per_batch", "admin", "at least 2"),
        ),
    ],
)
def test_a_mistake_in_a_class_or_tenant_names_file_and_key(tmp_path: Path, text: str, words: tuple[str, ...]) -> None:
    file = tmp_path / "noria.toml"
    file.write_text(text)
    with pytest.raises(UserError) as caught:
        load(file, {}, {})
    for word in (str(file), *words):
        assert word in str(caught.value)


def test_no_variable_sets_classes_or_tenants() -> None:
    with pytest.raises(UserError, match="unknown environment variable NORIA_CLASSES_BATCH"):
        load(None, {}, {"NORIA_CLASSES_BATCH": "1"})


def test_one_place_in_a_step_is_enough_where_nobody_shares() -> None:
    assert load(None, {"scheduler.max_requests_per_batch": 1}, {}).policy == "fifo"
    with pytest.raises(UserError, match="of 1 places in a step"):
        load(None, {"scheduler.max_requests_per_batch": 1, "scheduler.policy": "fair"}, {})


def test_variables_of_opentelemetry_set_what_ours_do_not() -> None:
    common = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://there:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    found = load(None, {}, common | {"NORIA_TELEMETRY_OTLP_ENDPOINT": "http://here:4317"}).telemetry
    assert (found.otlp_endpoint, found.otlp_protocol) == ("http://here:4317", "grpc")
    assert load(None, {"telemetry.otlp_protocol": "http/protobuf"}, common).telemetry.otlp_protocol == "http/protobuf"
    assert origins(None, {}, common)["telemetry.otlp_protocol"] == "OTEL_EXPORTER_OTLP_PROTOCOL"
    with pytest.raises(UserError, match=r"OTEL_EXPORTER_OTLP_PROTOCOL: telemetry\.otlp_protocol: .*http/json"):
        load(None, {}, {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"})
