"""The configuration as frozen structs: every option is declared here once, and nowhere else.

A declaration is a section and name, type, default, bounds, flags and help. Flags, variables, the file and
`noria config` all follow from it. Classes and tenants, of which there may be any number, are declared in `traffic`.
Knows nothing of where values come from: that is `config_sources`.
"""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from noria.shared.traffic import BUILT_IN, ClassSettings, TenantSettings

PolicyName = Literal["fifo", "prefill_first", "fair"]

BATCH_TOKENS: Final = 512
"""Query tokens that a step has room for where `scheduler.max_batch_tokens` is absent."""


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
    body_timeout_s: Annotated[float, Meta(description="How long a request body may take to arrive.", gt=0)] = 60.0
    connections_max: Annotated[int, Meta(description="Open connections; those beyond are answered 503.", ge=1)] = 8192
    drain_timeout_s: Annotated[
        float, Meta(description="How long open responses may finish when a gateway stops.", ge=0)
    ] = 20.0
    gateway_grace_s: Annotated[
        float, Meta(description="How long requests live on after their gateway was last heard.", ge=0, le=86_400)
    ] = 15.0


class SchedulerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who is in each step."""

    policy: Annotated[
        Literal["auto", "fifo", "prefill_first", "fair"],
        Meta(
            description="Whose turn it is and who gives way; auto is fair once classes or tenants are configured.",
            extra=_flags("--scheduler", "--scheduler-type"),
        ),
    ] = "auto"
    max_batch_tokens: Annotated[
        Annotated[int, Meta(ge=1, le=65536)] | None,
        Meta(
            description="Query tokens in a step, at most; where absent 512, of which prompts take what was measured to be best.",
            extra=_flags("--max-batch-tokens", "--max-num-batched-tokens"),
        ),
    ] = None
    prefill_chunk_tokens: Annotated[
        Annotated[int, Meta(ge=1, le=65536)] | None,
        Meta(
            description="Prompt tokens in a step, at most; measured where this and max_batch_tokens are absent.",
            extra=_flags("--prefill-chunk-tokens", "--chunked-prefill-size"),
        ),
    ] = None
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
    prompt_price: Annotated[float, Meta(description="fair: what a computed prompt token counts.", ge=0, le=1000)] = 1.0
    cached_price: Annotated[
        float, Meta(description="fair: what a prompt token found in the cache counts.", ge=0, le=1000)
    ] = 0.1
    output_price: Annotated[float, Meta(description="fair: what an output token counts.", ge=0, le=1000)] = 2.0
    progress_tokens: Annotated[
        int, Meta(description="fair: output of a preempted request before it is preempted again.", ge=1)
    ] = 16
    safety_margin: Annotated[
        Annotated[float, Meta(ge=0, le=0.9)] | None,
        Meta(description="Share of blocks kept for running requests; 0 for prefill_first, else 0.15."),
    ] = None
    queue_requests_max: Annotated[
        int, Meta(description="Waiting requests accepted.", extra=_flags("--max-queue-size"), ge=1)
    ] = 4096
    queue_tokens_max: Annotated[int, Meta(description="Prompt tokens of waiting requests accepted.", ge=1)] = 4_000_000
    stop_lookahead: Annotated[
        int, Meta(description="Tokens a request with stop strings may be planned ahead of the detokenizer.", ge=1)
    ] = 4
    adoption_timeout_s: Annotated[
        float,
        Meta(
            description="How long a new scheduler waits for what the executor holds, and for admission, before it plans.",
            ge=0,
        ),
    ] = 10.0
    event_log: Annotated[
        str,
        Meta(
            description="File that records events for `noria replay` and `noria why`; no text or token ids.",
            extra=_flags("--event-log"),
        ),
    ] = ""
    event_log_bytes_max: Annotated[
        int, Meta(description="Size of the event log, the file before it included.", ge=1 << 16)
    ] = 1 << 28


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
    kernels: Annotated[
        Literal["auto", "reference", "portable", "avx2", "avx512"],
        Meta(
            description="What computes: kernels for these instructions, or plain PyTorch; auto is the best that there is.",
            extra=_flags("--kernels"),
        ),
    ] = "auto"
    quantization: Annotated[
        Literal["none", "int8"],
        Meta(
            description="int8: matrix products in eight-bit integers, scaled in groups of 32 inputs.",
            extra=_flags("--quantization"),
        ),
    ] = "none"
    device: Annotated[
        Literal["cpu", "cuda"],
        Meta(description="What computes; cuda is a GPU, of NVIDIA, or of AMD under ROCm.", extra=_flags("--device")),
    ] = "cpu"
    q_padding_interval_size: Annotated[
        int,
        Meta(
            description="cuda: a step's query tokens are padded to a multiple of this, so that few graphs serve many steps.",
            extra=_flags("--q-padding-interval-size"),
            ge=1,
            le=65536,
        ),
    ] = 64
    kv_padding_interval_size: Annotated[
        int,
        Meta(
            description="cuda: the cached tokens of a step's longest sequence are padded to a multiple of this.",
            extra=_flags("--kv-padding-interval-size"),
            ge=1,
            le=1 << 20,
        ),
    ] = 4096
    graphs_max: Annotated[
        int,
        Meta(
            description="cuda: recorded shapes of steps that are kept; 0 computes every step operation by operation.",
            extra=_flags("--graphs-max"),
            ge=0,
            le=1024,
        ),
    ] = 32
    keep_packed: Annotated[
        bool,
        Meta(
            description="Keep weights as the kernels read them in the model's folder: the next start maps them.",
            extra=_flags("--keep-packed"),
        ),
    ] = True
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
        Meta(description="How services reach each other.", extra=_flags("--transport")),
    ] = "ipc"
    curve_dir: Annotated[
        str,
        Meta(
            description="tcp: folder of keys made by `noria keys curve`; everything is encrypted and only key holders connect.",
            extra=_flags("--curve-dir"),
        ),
    ] = ""
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
    state_dir: Annotated[
        str,
        Meta(
            description="Folder of what outlives the processes, mode 0700; ~/.local/state/noria or DIR/state where empty.",
            extra=_flags("--state-dir"),
        ),
    ] = ""
    config_file: Annotated[str, Meta(description="Set by `noria up`: the file to read again at SIGHUP.")] = ""
    supervised: Annotated[bool, Meta(description="Set by the supervisor for the services it starts.")] = False
    heartbeat_s: Annotated[float, Meta(description="Time between heartbeats.", gt=0)] = 1.0
    peer_timeout_s: Annotated[
        float, Meta(description="Silence after which a peer or client is taken for gone.", ge=3)
    ] = 15.0
    journal: Annotated[
        bool,
        Meta(
            description="Keep accepted requests on disk, in the state folder, so that they go on after any restart.",
            extra=_flags("--journal"),
        ),
    ] = True
    retention_s: Annotated[
        float,
        Meta(
            description="How long an ended request can be fetched again when nobody acknowledged it, and how long a stack "
            "may be away for unfinished ones to go on.",
            ge=0,
        ),
    ] = 60.0
    start_timeout_s: Annotated[float, Meta(description="How long the stack may take to become ready.", gt=0)] = 180.0
    stop_timeout_s: Annotated[
        float, Meta(description="How long a service may take to stop before it is killed.", gt=0)
    ] = 10.0
    drain_timeout_s: Annotated[
        float,
        Meta(
            description="How long accepted requests may go on when the stack is told to stop.",
            extra=_flags("--drain-timeout"),
            ge=0,
        ),
    ] = 20.0
    hang_timeout_s: Annotated[
        float,
        Meta(
            description="Silence, or work without progress, after which a service ends itself or is killed; "
            "a step may always take ten times its prediction.",
            gt=0,
        ),
    ] = 15.0
    restart_pause_s: Annotated[
        float, Meta(description="Pause before the second start in a row of a dead service; then doubled.", ge=0)
    ] = 0.5
    restart_pause_max_s: Annotated[float, Meta(description="Longest pause before a start.", ge=0)] = 10.0
    crash_loop_deaths: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(
            description="Deaths of one service without a step in between after which the stack gives up; where absent 5, "
            "or as many as finding one bad request among max_requests_per_batch may take."
        ),
    ] = None
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
    """Traces and metrics: what is recorded, and where it is sent by OTLP."""

    otlp_endpoint: Annotated[
        str,
        Meta(
            description="OTLP endpoint (http://HOST:4318, for gRPC http://HOST:4317); no export where empty.",
            extra=_flags("--otlp-endpoint") | {"variable": "OTEL_EXPORTER_OTLP_ENDPOINT"},
        ),
    ] = ""
    otlp_protocol: Annotated[
        Literal["http/protobuf", "grpc"],
        Meta(
            description="How it is sent; grpc needs the extra `grpc`.",
            extra=_flags("--otlp-protocol") | {"variable": "OTEL_EXPORTER_OTLP_PROTOCOL"},
        ),
    ] = "http/protobuf"
    otlp_metrics: Annotated[
        bool, Meta(description="Send metrics there, too; not needed where /metrics is scraped.")
    ] = True
    sample_ratio: Annotated[
        float,
        Meta(
            description="Share of requests traced, where callers have not decided already.",
            extra=_flags("--trace-sample-ratio"),
            ge=0,
            le=1,
        ),
    ] = 1.0
    step_ratio: Annotated[
        float, Meta(description="Share of the steps without an arrival that are shown in traces.", ge=0, le=1)
    ] = 0.1
    spans_kept: Annotated[
        int, Meta(description="Recent spans that each process keeps for `noria trace`.", ge=0, le=100_000)
    ] = 4096
    tenants_max: Annotated[
        int, Meta(description="Tenants with metrics of their own; the others are added up as `other`.", ge=1)
    ] = 50


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
    classes: dict[str, ClassSettings] = msgspec.field(default_factory=BUILT_IN.copy)
    tenants: dict[str, TenantSettings] = {}

    @property
    def has_policy(self) -> bool:
        """Whether the file says anything of classes or tenants: without, there is one tenant and nothing is limited."""
        return bool(self.tenants) or self.classes != BUILT_IN

    @property
    def policy(self) -> PolicyName:
        """The scheduling policy that is meant."""
        chosen = self.scheduler.policy
        if chosen == "auto":
            return "fair" if self.has_policy else "fifo"
        return chosen
