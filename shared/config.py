"""The configuration: one TOML file, `NORIA_…` variables and flags, read once into frozen structs.

Every option is declared here once: its section and name, type, default, bounds, flags and help. Flags, variables, the
file and `noria config` all follow from the declaration. Later sources win: defaults, file, variables, flags.
Unknown keys are refused with the nearest known name.
"""

import difflib
import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from noria.shared.errors import UserError

VARIABLE_PREFIX: Final = "NORIA_"
CONFIG_VARIABLE: Final = "NORIA_CONFIG"


def _flags(*names: str) -> dict[str, Any]:
    return {"flags": names}


class ModelSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which model, under which names, in which precision."""

    name: Annotated[
        str, Meta(description="Alias, local folder, GGUF file or hub id.", extra=_flags("--model"), min_length=1)
    ] = "smollm2"
    served_names: Annotated[
        tuple[str, ...],
        Meta(description="Names that requests may use; the first is canonical.", extra=_flags("--served-model-name")),
    ] = ()
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16"],
        Meta(description="Precision; auto picks what this processor does well.", extra=_flags("--dtype")),
    ] = "auto"
    max_model_tokens: Annotated[
        Annotated[int, Meta(ge=2)] | None,
        Meta(
            description="Context length, prompt and output together; the model's own where absent.",
            extra=_flags("--max-model-tokens", "--max-model-len"),
        ),
    ] = None
    cache_dir: Annotated[
        str,
        Meta(
            description="Folder of pulled models; ~/.cache/noria/models where empty.", extra=_flags("--model-cache-dir")
        ),
    ] = ""


class HttpSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The HTTP front door."""

    address: Annotated[str, Meta(description="HOST:PORT to serve HTTP on.", extra=_flags("--http"))] = "127.0.0.1:8000"
    body_bytes_max: Annotated[int, Meta(description="Largest accepted request body.", ge=1024)] = 4 * 1024 * 1024
    drain_timeout_s: Annotated[float, Meta(description="How long open responses may finish at shutdown.", ge=0)] = 5.0
    gateway_grace_s: Annotated[float, Meta(description="How long streams live on after their gateway died.", ge=0)] = (
        15.0
    )


class SchedulerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who is in each step."""

    policy: Annotated[
        Literal["fifo", "prefill_first"],
        Meta(
            description="Order of waiting requests and choice of victims.",
            extra=_flags("--scheduler", "--scheduler-type"),
        ),
    ] = "fifo"
    max_batch_tokens: Annotated[
        int,
        Meta(
            description="Query tokens in a step, at most.",
            extra=_flags("--max-batch-tokens", "--max-num-batched-tokens"),
            ge=1,
            le=65536,
        ),
    ] = 512
    max_requests_per_batch: Annotated[
        int,
        Meta(
            description="Requests in a step, at most.",
            extra=_flags("--max-requests-per-batch", "--max-num-seqs"),
            ge=1,
            le=4096,
        ),
    ] = 64
    max_cache_tokens: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(
            description="Cached tokens read in a step, at most; unlimited where absent.",
            extra=_flags("--max-cache-tokens"),
        ),
    ] = None
    steps_in_flight: Annotated[
        int,
        Meta(
            description="Steps sent to the executor ahead of results: 1 or 2.",
            extra=_flags("--steps-in-flight"),
            ge=1,
            le=2,
        ),
    ] = 2
    safety_margin: Annotated[
        Annotated[float, Meta(ge=0, le=0.9)] | None,
        Meta(description="Share of blocks kept for running requests; 0.15 for fifo, 0 for prefill_first."),
    ] = None
    queue_requests_max: Annotated[
        int, Meta(description="Waiting requests accepted.", extra=_flags("--max-queue-size"), ge=1)
    ] = 4096
    queue_tokens_max: Annotated[int, Meta(description="Prompt tokens of waiting requests accepted.", ge=1)] = 4_000_000
    stop_lookahead: Annotated[
        int, Meta(description="Tokens a request with stop strings may be planned ahead of the detokenizer.", ge=1)
    ] = 4


class CacheSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The paged key-value cache."""

    page_size: Annotated[
        int, Meta(description="Tokens in a page.", extra=_flags("--page-size", "--block-size"), ge=1, le=1024)
    ] = 16
    num_blocks: Annotated[
        Annotated[int, Meta(ge=3)] | None,
        Meta(description="Chunks of the cache; sized from free memory where absent.", extra=_flags("--num-blocks")),
    ] = None
    max_memory_percent: Annotated[
        float,
        Meta(
            description="Share of free memory that weights and cache may take.",
            extra=_flags("--max-memory-percent", "--gpu-memory-utilization"),
            gt=0,
            le=1,
        ),
    ] = 0.6
    allow_block_sharing: Annotated[
        bool,
        Meta(
            description="Let requests with the same beginning share its cached blocks.",
            extra=_flags("--allow-block-sharing", "--enable-prefix-caching"),
        ),
    ] = True
    cpu_offload_space: Annotated[
        float,
        Meta(
            description="GiB of host memory for the cache of preempted requests.",
            extra=_flags("--cpu-offload-space"),
            ge=0,
        ),
    ] = 0.0
    cpu_offload_space_safety_threshold: Annotated[
        float,
        Meta(
            description="Share of free host memory that cpu_offload_space may take.",
            extra=_flags("--cpu-offload-space-safety-threshold"),
            gt=0,
            le=1,
        ),
    ] = 0.8
    kv_cache_dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16", "int8"],
        Meta(description="Precision of cached keys and values; auto is the model's.", extra=_flags("--kv-cache-dtype")),
    ] = "auto"


class ExecutorSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How steps are computed."""

    threads: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="Compute threads; the cores this container may use where absent.", extra=_flags("--threads")),
    ] = None
    ranks: Annotated[
        int,
        Meta(description="Tensor-parallel ranks; only 1 today.", extra=_flags("--tensor-parallel-size"), ge=1, le=1),
    ] = 1


class LimitSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Hard limits on what comes in from outside."""

    message_bytes_max: Annotated[int, Meta(description="Largest message on a public mailbox.", ge=4096)] = (
        8 * 1024 * 1024
    )
    requests_max: Annotated[int, Meta(description="Accepted, unfinished requests.", ge=1)] = 8192
    n_max: Annotated[int, Meta(description="Choices of one request.", ge=1)] = 16
    stop_strings_max: Annotated[int, Meta(description="Stop strings of one request.", ge=0)] = 16
    stop_string_characters_max: Annotated[int, Meta(description="Characters in one stop string.", ge=1)] = 256
    stop_token_ids_max: Annotated[int, Meta(description="Stop token ids of one request.", ge=0)] = 64
    request_id_characters_max: Annotated[int, Meta(description="Characters in a request id.", ge=8)] = 128
    messages_max: Annotated[int, Meta(description="Messages of one chat.", ge=1)] = 1024
    tokenizing_characters_max: Annotated[
        int, Meta(description="Text that may wait for the tokenizer, of all clients together.", ge=4096)
    ] = 64 * 1024 * 1024


class RuntimeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the processes meet, and how patient they are."""

    dir: Annotated[
        str,
        Meta(
            description="Folder of sockets and locks, mode 0700; a per-user default where empty.",
            extra=_flags("--runtime-dir"),
        ),
    ] = ""
    transport: Annotated[
        Literal["ipc", "tcp"],
        Meta(
            description="How services reach each other; tcp has no keys yet and is meant for a private network.",
            extra=_flags("--transport"),
        ),
    ] = "ipc"
    hosts: Annotated[
        dict[str, str], Meta(description="tcp: host of each service (service = host); 127.0.0.1 where absent.")
    ] = {}
    bind_host: Annotated[str, Meta(description="tcp: address to bind.", extra=_flags("--bind-host"))] = "127.0.0.1"
    insecure_tcp: Annotated[
        bool, Meta(description="tcp: allow binding beyond loopback without keys.", extra=_flags("--insecure-tcp"))
    ] = False
    base_port: Annotated[
        int, Meta(description="tcp: first of seven ports.", extra=_flags("--base-port"), ge=1024, le=65000)
    ] = 7610
    supervised: Annotated[bool, Meta(description="Set by the supervisor for the services it starts.")] = False
    heartbeat_s: Annotated[float, Meta(description="Time between heartbeats.", gt=0)] = 1.0
    peer_timeout_s: Annotated[
        float, Meta(description="Silence after which a peer or client is taken for gone.", ge=3)
    ] = 15.0
    retention_s: Annotated[
        float, Meta(description="How long an ended request can be fetched again when nobody acknowledged it.", ge=0)
    ] = 60.0
    start_timeout_s: Annotated[float, Meta(description="How long the stack may take to become ready.", gt=0)] = 180.0
    stop_timeout_s: Annotated[
        float, Meta(description="How long a service may take to stop before it is killed.", gt=0)
    ] = 10.0
    high_water_mark: Annotated[int, Meta(description="Messages queued per socket.", ge=16)] = 1000
    outbox_messages_max: Annotated[int, Meta(description="Messages that wait for a full socket, per peer.", ge=16)] = (
        10_000
    )


class LogSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Log events, written to standard error."""

    format: Annotated[
        Literal["auto", "console", "json"],
        Meta(description="auto is console on a terminal, json elsewhere.", extra=_flags("--log-format")),
    ] = "auto"
    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(description="Least level written.", extra=_flags("--log-level")),
    ] = "info"


class TelemetrySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Traces and metrics by OTLP over HTTP."""

    otlp_endpoint: Annotated[
        str,
        Meta(
            description="OTLP/HTTP endpoint (http://HOST:4318); no export where empty.", extra=_flags("--otlp-endpoint")
        ),
    ] = ""
    sample_ratio: Annotated[float, Meta(description="Share of requests traced.", ge=0, le=1)] = 1.0


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything; each service takes from it what it needs in its own `config.py`."""

    model: ModelSettings = ModelSettings()
    http: HttpSettings = HttpSettings()
    scheduler: SchedulerSettings = SchedulerSettings()
    cache: CacheSettings = CacheSettings()
    executor: ExecutorSettings = ExecutorSettings()
    limits: LimitSettings = LimitSettings()
    runtime: RuntimeSettings = RuntimeSettings()
    log: LogSettings = LogSettings()
    telemetry: TelemetrySettings = TelemetrySettings()


class Option(msgspec.Struct, frozen=True):
    """One option as declared: where it lives, its type, flags, help and default."""

    section: str
    key: str
    type: Any
    flags: tuple[str, ...]
    help: str
    default: Any

    @property
    def path(self) -> str:
        """The dotted name used in errors."""
        return f"{self.section}.{self.key}"

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return f"{VARIABLE_PREFIX}{self.section}_{self.key}".upper()


def options() -> Iterator[Option]:
    """Yield every option in declaration order."""
    for section in msgspec.structs.fields(Config):
        hints = get_type_hints(section.type, include_extras=True)
        for field in msgspec.structs.fields(section.type):
            annotated = hints[field.name]
            meta = next(extra for extra in annotated.__metadata__ if isinstance(extra, Meta))
            default = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
            yield Option(
                section=section.name,
                key=field.name,
                type=get_args(annotated)[0],
                flags=tuple((meta.extra or {}).get("flags", ())),
                help=meta.description or "",
                default=default,
            )


def load(
    path: str | os.PathLike[str] | None,
    flags: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Config:
    """Read the configuration once.

    path: a TOML file, or None for the one that NORIA_CONFIG names, if any. flags: values by dotted option path.
    Raises UserError naming the source and the key of what is wrong.
    """
    layers = _layers(path, flags, environment)
    merged: dict[str, dict[str, Any]] = {}
    for _, content in layers:
        _merge(merged, content)
    return _convert(merged, layers)


def origins(
    path: str | os.PathLike[str] | None,
    flags: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Say for each option that is not at its default which source set it, by dotted path: a file, variable or flag."""
    return {where: source for source, content in _layers(path, flags, environment) for where in _paths(content)}


_Layer = tuple[str, Mapping[str, Mapping[str, Any]]]


def _layers(
    path: str | os.PathLike[str] | None, flags: Mapping[str, Any] | None, environment: Mapping[str, str] | None
) -> list[_Layer]:
    """Read every source, the weakest first."""
    environment = os.environ if environment is None else environment
    layers: list[_Layer] = []
    source = path or environment.get(CONFIG_VARIABLE)
    if source:
        layers.append((str(source), _read_file(Path(source))))
    for option, value in _read_environment(environment):
        layers.append((option.variable, {option.section: {option.key: value}}))
    declared = {option.path: option for option in options()}
    for name, value in (flags or {}).items():
        option = declared[name]
        layers.append((option.flags[0] if option.flags else name, {option.section: {option.key: value}}))
    return layers


def _paths(content: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for section, values in content.items():
        for key in values:
            yield f"{section}.{key}"


def dump(config: Config) -> dict[str, Any]:
    """Return the effective configuration as plain values."""
    plain = msgspec.to_builtins(config)
    assert isinstance(plain, dict)
    return plain


def write(config: Config, path: Path) -> None:
    """Write the effective configuration for child processes, readable by the owner alone."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(config))


def _read_file(path: Path) -> dict[str, Any]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read the configuration file {path}: {error.strerror}") from error
    try:
        content = msgspec.json.decode(data) if path.suffix == ".json" else tomllib.loads(data.decode())
    except (msgspec.DecodeError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid: {error}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} must hold sections")
    _check_names(content, str(path))
    return content


def _check_names(content: Mapping[str, Any], source: str) -> None:
    known: dict[str, list[str]] = {}
    for option in options():
        known.setdefault(option.section, []).append(option.key)
    for section, values in content.items():
        if section not in known:
            raise UserError(f"{source}: unknown section [{section}]{_nearest(section, known)}")
        if not isinstance(values, dict):
            raise UserError(f"{source}: {section} must be a section, written [{section}]")
        for key in values:
            if key not in known[section]:
                raise UserError(f"{source}: unknown key {section}.{key}{_nearest(key, known[section])}")


def _read_environment(environment: Mapping[str, str]) -> Iterator[tuple[Option, Any]]:
    declared = {option.variable: option for option in options()}
    for name, text in environment.items():
        if not name.startswith(VARIABLE_PREFIX) or name == CONFIG_VARIABLE:
            continue
        option = declared.get(name)
        if option is None:
            raise UserError(f"unknown environment variable {name}{_nearest(name, declared)}")
        yield option, parse(option, text, f"environment variable {name}")


def parse(option: Option, text: str, source: str) -> Any:
    """Turn text from a variable or flag into the option's type. Raises UserError naming the source."""
    kind = option.type
    try:
        if get_origin(kind) is tuple:
            return tuple(part.strip() for part in text.split(",") if part.strip())
        if get_origin(kind) is dict:
            return dict(part.strip().split("=", 1) for part in text.split(",") if part.strip())
        if type(None) in get_args(kind) and text.lower() in ("", "none", "auto"):
            return None
        return msgspec.convert(text, kind, strict=False)
    except (msgspec.ValidationError, ValueError) as error:
        raise UserError(f"{source}: {option.path}: {error}") from error


def _merge(into: dict[str, dict[str, Any]], new: Mapping[str, Mapping[str, Any]]) -> None:
    for section, values in new.items():
        into.setdefault(section, {}).update(values)


def _convert(content: Mapping[str, Any], layers: list[_Layer]) -> Config:
    try:
        return msgspec.convert(content, Config)
    except msgspec.ValidationError as error:
        text = str(error)
        where = text.rpartition(" - at `$.")[2].rstrip("`") if " - at `$." in text else ""
        reason = text.partition(" - at ")[0]
        key = where.partition("[")[0]
        source = next((name for name, layer in reversed(layers) if key in _paths(layer)), "configuration")
        raise UserError(f"{source}: {where + ': ' if where else ''}{reason}") from error


def _nearest(name: str, known: Mapping[str, Any] | list[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else f"; known: {', '.join(list(known)[:20])}"
