"""What a person is told when the stack is ready: what is served, how, where, and by which processes."""

import sys
from collections.abc import Mapping

import msgspec

from noria.proto.base import Service
from noria.proto.execution import Geometry
from noria.services.supervisor.config import SupervisorConfig
from noria.shared.actor.endpoints import public_mailbox
from noria.shared.actor.inspect import inspect


class Share(msgspec.Struct, frozen=True):
    """What takes how many bytes of memory."""

    name: str
    bytes: int


class Memory(msgspec.Struct, frozen=True):
    """Where the executor's memory goes, and how much of the cache that leaves."""

    free_bytes: int
    shares: tuple[Share, ...]
    cache_tokens: int
    full_requests: int


class Facts(msgspec.Struct, frozen=True):
    """What the executor's snapshot says of itself; `geometry` and `memory` are None and `threads` 0 while it says nothing."""

    geometry: Geometry | None = None
    threads: int = 0
    kernels: str = ""
    memory: Memory | None = None


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
    return [
        ("compute", f"{geometry.dtype} on {geometry.device}{threads}"),
        *([("kernels", facts.kernels)] if facts.kernels else []),
        *_memory(facts, geometry),
        ("context", f"{geometry.max_model_tokens} tokens"),
    ]


def _memory(facts: Facts, geometry: Geometry) -> list[tuple[str, str]]:
    memory, chunks = facts.memory, geometry.num_blocks - geometry.reserved_blocks
    if memory is None:
        return [("cache", f"{chunks} blocks")]
    taken = "requests" if memory.full_requests != 1 else "request"
    return [
        (
            "cache",
            f"{memory.cache_tokens} tokens in {chunks} blocks: {memory.full_requests} {taken} of the whole context",
        ),
        ("memory", f"{memory.free_bytes >> 20} MiB were free"),
        *(("", f"{share.bytes / 2**20:9.1f} MiB  {share.name}") for share in memory.shares if share.bytes),
    ]
