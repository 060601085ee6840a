"""What a person is told when the stack is ready: what is served, how, where, and by which processes."""

import sys
from collections.abc import Mapping

import msgspec

from noria.proto.base import Service
from noria.proto.execution import Geometry
from noria.services.supervisor.config import SupervisorConfig
from noria.shared.endpoints import public_mailbox
from noria.shared.inspect import inspect


class Facts(msgspec.Struct, frozen=True):
    """What the executor's snapshot says of itself; `geometry` is None and `threads` 0 while it says nothing."""

    geometry: Geometry | None = None
    threads: int = 0


def ready(config: SupervisorConfig, pids: Mapping[Service, int], start_ms: int) -> None:
    """Print the start-up table to standard output."""
    snapshot = inspect(config.children.runtime, Service.EXECUTOR)
    facts = msgspec.json.decode(snapshot.json, type=Facts) if snapshot is not None else Facts()
    sys.stdout.write(table(config, pids, facts, start_ms))
    sys.stdout.flush()


def table(config: SupervisorConfig, pids: Mapping[Service, int], facts: Facts, start_ms: int) -> str:
    """The start-up table as text; what the executor does not say is left out."""
    model = config.children.model
    rows = [
        ("model", f"{', '.join(model.served_names)} ({model.name})"),
        *_compute(facts),
        ("HTTP", f"http://{config.http}/v1"),
        ("ZeroMQ", public_mailbox(config.children.runtime)),
        ("processes", ", ".join(f"{service.value} {pid}" for service, pid in pids.items())),
    ]
    lines = [f"  {name:<11}{value}" for name, value in rows]
    head = f"noria is ready after {start_ms / 1000:.1f} s"
    return "\n".join(["", head, "", *lines, "", "Ctrl-C or `noria down` stops it.", ""])


def _compute(facts: Facts) -> list[tuple[str, str]]:
    geometry = facts.geometry
    if geometry is None:
        return []
    threads = f", {facts.threads} {'thread' if facts.threads == 1 else 'threads'}" if facts.threads else ""
    blocks = geometry.num_blocks - geometry.reserved_blocks
    tokens = blocks * geometry.page_size
    return [
        ("compute", f"{geometry.dtype} on {geometry.device}{threads}"),
        ("cache", f"{tokens} tokens in {blocks} blocks of {geometry.page_size}"),
        ("context", f"{geometry.max_model_tokens} tokens"),
    ]
