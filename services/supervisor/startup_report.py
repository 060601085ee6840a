"""The table that `noria up` prints when the stack is ready: model, device, memory, addresses, processes."""

import sys
from collections.abc import Mapping

import msgspec

from noria.proto.base import Service
from noria.proto.execution import Geometry
from noria.services.supervisor.config import SupervisorConfig
from noria.shared.actor.endpoints import public_mailbox
from noria.shared.actor.inspect import inspect


class MemoryUse(msgspec.Struct, frozen=True):
    """One named use of device memory, in bytes."""

    name: str
    bytes: int


class MemoryReport(msgspec.Struct, frozen=True):
    """How the executor divides its memory, and what the cache holds.

    cache_tokens: tokens that fit. full_requests: requests of maximum length that fit at once.
    """

    free_bytes: int
    shares: tuple[MemoryUse, ...]
    cache_tokens: int
    full_requests: int


class ExecutorReport(msgspec.Struct, frozen=True):
    """The fields of the executor's snapshot that the table shows; None, 0 or empty where the snapshot lacks them."""

    geometry: Geometry | None = None
    threads: int = 0
    kernels: str = ""
    memory: MemoryReport | None = None


def print_ready(config: SupervisorConfig, pids: Mapping[Service, int], start_ms: int) -> None:
    """Print the start-up table to standard output."""
    snapshot = inspect(config.children.runtime, Service.EXECUTOR)
    report = msgspec.json.decode(snapshot.json, type=ExecutorReport) if snapshot is not None else ExecutorReport()
    sys.stdout.write(ready_table(config, pids, report, start_ms))
    sys.stdout.flush()


def ready_table(config: SupervisorConfig, pids: Mapping[Service, int], report: ExecutorReport, start_ms: int) -> str:
    """The start-up table as text; lines without data are left out."""
    model = config.children.model
    rows = [
        ("model", f"{', '.join(model.served_names)} ({model.name})"),
        *_compute_rows(report),
        ("HTTP", f"http://{config.http}/v1"),
        ("ZeroMQ", public_mailbox(config.children.runtime)),
        ("processes", ", ".join(f"{service.value} {pid}" for service, pid in pids.items())),
    ]
    lines = [f"  {name:<11}{value}" for name, value in rows]
    head = f"noria is ready after {start_ms / 1000:.1f} s"
    return "\n".join(["", head, "", *lines, "", "Ctrl-C or `noria down` stops it.", ""])


def _compute_rows(report: ExecutorReport) -> list[tuple[str, str]]:
    geometry = report.geometry
    if geometry is None:
        return []
    threads = f", {report.threads} {'thread' if report.threads == 1 else 'threads'}" if report.threads else ""
    return [
        ("compute", f"{geometry.dtype} on {geometry.device}{threads}"),
        *([("kernels", report.kernels)] if report.kernels else []),
        *_memory_rows(report, geometry),
        ("context", f"{geometry.max_model_tokens} tokens"),
    ]


def _memory_rows(report: ExecutorReport, geometry: Geometry) -> list[tuple[str, str]]:
    memory, chunks = report.memory, geometry.num_blocks - geometry.reserved_blocks
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
