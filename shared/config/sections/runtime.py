"""The options of section `[runtime]`."""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from noria.shared.config.sections.flags import flags

RESTART_PAUSE_MAX_S: Final = 10.0
"""A dead service is not left alone for longer, unless the first pause is longer already."""


class RuntimeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the processes meet, and how patient they are."""

    dir: Annotated[
        str,
        Meta(
            description="Folder of sockets and locks, mode 0700; a per-user default where empty.",
            extra=flags("--runtime-dir"),
        ),
    ] = ""
    transport: Annotated[
        Literal["ipc", "tcp"],
        Meta(description="How services reach each other.", extra=flags("--transport")),
    ] = "ipc"
    curve_dir: Annotated[
        str,
        Meta(
            description="tcp: folder of keys made by `noria keys curve`; everything is encrypted and only key holders connect.",
            extra=flags("--curve-dir"),
        ),
    ] = ""
    hosts: Annotated[
        dict[str, str], Meta(description="tcp: host of each service (service = host); 127.0.0.1 where absent.")
    ] = {}
    bind_host: Annotated[str, Meta(description="tcp: address to bind.", extra=flags("--bind-host"))] = "127.0.0.1"
    insecure_tcp: Annotated[
        bool, Meta(description="tcp: allow binding beyond loopback without keys.", extra=flags("--insecure-tcp"))
    ] = False
    base_port: Annotated[
        int, Meta(description="tcp: first of seven ports.", extra=flags("--base-port"), ge=1024, le=65000)
    ] = 7610
    state_dir: Annotated[
        str,
        Meta(
            description="Folder of what outlives the processes, mode 0700; ~/.local/state/noria or DIR/state where empty.",
            extra=flags("--state-dir"),
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
            extra=flags("--journal"),
        ),
    ] = True
    journal_sync: Annotated[
        Literal["normal", "full"],
        Meta(
            description="full: what is accepted and told is on the disk itself, and survives a power cut; each turn waits for "
            "the disk. normal: it survives the death of every process.",
            extra=flags("--journal-sync"),
        ),
    ] = "normal"
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
            extra=flags("--drain-timeout"),
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
        float,
        Meta(description="Pause before the second start in a row of a dead service; then doubled, up to 10 s.", ge=0),
    ] = 0.5
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

    @property
    def longest_restart_pause_s(self) -> float:
        """The longest time between a service's death and its next start."""
        return max(RESTART_PAUSE_MAX_S, self.restart_pause_s)
