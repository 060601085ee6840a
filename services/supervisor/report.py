"""What a person is told when the stack is ready: what is served, how, where, and by which processes."""

import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from noria.proto.base import Service
from noria.services.supervisor.config import SupervisorConfig
from noria.shared.endpoints import public_mailbox
from noria.shared.inspect import inspect


def ready(config: SupervisorConfig, pids: Mapping[Service, int], start_ms: int) -> None:
    """Print the start-up table to standard output."""
    snapshot = inspect(config.children.runtime, Service.EXECUTOR)
    facts: dict[str, Any] = msgspec.json.decode(snapshot.json) if snapshot is not None else {}
    sys.stdout.write(table(config, pids, facts, start_ms))
    sys.stdout.flush()


def table(config: SupervisorConfig, pids: Mapping[Service, int], facts: Mapping[str, Any], start_ms: int) -> str:
    """The start-up table as text. `facts` is the executor's snapshot; what it does not say is left out."""
    model = config.children.model
    rows = [
        ("model", f"{', '.join(model.served_names)} ({model.name})"),
        ("compute", _compute(facts)),
        ("cache", _cache(facts, config)),
        ("HTTP", f"http://{config.http}/v1"),
        ("ZeroMQ", public_mailbox(config.children.runtime)),
        ("processes", ", ".join(f"{service.value} {pid}" for service, pid in pids.items())),
    ]
    lines = [f"  {name:<11}{value}" for name, value in rows if value]
    head = f"noria is ready after {start_ms / 1000:.1f} s"
    return "\n".join(["", head, "", *lines, "", "Ctrl-C or `noria down` stops it.", ""])


def _compute(facts: Mapping[str, Any]) -> str:
    parts = [str(facts[name]) for name in ("dtype", "device") if facts.get(name)]
    if facts.get("threads"):
        parts.append(f"{facts['threads']} threads")
    return ", ".join(parts)


def _cache(facts: Mapping[str, Any], config: SupervisorConfig) -> str:
    blocks = facts.get("blocks")
    if not isinstance(blocks, int):
        return ""
    page_tokens = config.children.cache.page_size
    return f"{blocks} blocks of {page_tokens} tokens, {blocks * page_tokens} tokens"
