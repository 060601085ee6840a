"""Prepares the runtime folder: takes its lock, removes leftovers, and writes the children's configuration.

Services of an earlier supervisor may still run in it. They can be adopted if their configuration is the same.
"""

import os
import socket
from pathlib import Path
from typing import Any, Final

import msgspec

from noria.proto.base import Service
from noria.services.supervisor.config import SupervisorConfig
from noria.services.supervisor.core.stack_phase import START_ORDER
from noria.shared.actor.endpoints import prepare_runtime_dir, split_address
from noria.shared.config.config import Config
from noria.shared.config.sources import dump, write
from noria.shared.errors import UserError
from noria.shared.process.crash_log import crash_log_path
from noria.shared.process.listener import listen
from noria.shared.process.locks import Lock, LockRecord, living_holder

CONFIG_NAME: Final = "effective.json"
# What may differ between the configuration of running services and ours: it is read again, or only the supervisor's. Not
# what the gateway's grace follows from: a supervisor more patient than theirs would find hung gateways too late.
_MAY_DIFFER: Final = frozenset(
    f"runtime.{key}"
    for key in (
        "config_file",
        "start_timeout_s",
        "stop_timeout_s",
        "restart_pause_s",
        "crash_loop_deaths",
    )
)


def acquire(config: SupervisorConfig) -> Lock:
    """Take the runtime folder's lock and return it.

    Raises UserError when another supervisor runs in it, or when services of one that was killed run by another
    configuration.
    """
    folder = prepare_runtime_dir(config.children.runtime)
    lock = Lock(folder, Service.SUPERVISOR.value)
    owner = lock.acquire(LockRecord(Service.SUPERVISOR.value, os.getpid(), "", config.http))
    if owner is not None:
        serving = f", serving http://{owner.http}" if owner.http else ""
        raise UserError(
            f"noria already runs in {folder} as process {owner.pid}{serving}; stop it with `noria down` or choose "
            "another --runtime-dir and --http"
        )
    left = _running_services(folder)
    different = _differences(folder / CONFIG_NAME, config.children) if left else ()
    if different:
        lock.release()
        names = ", ".join(f"{holder.service} ({holder.pid})" for holder in left)
        raise UserError(
            f"services of an earlier start still run in {folder} by another configuration ({', '.join(different)}): "
            f"{names}; start with theirs to take them over, or stop them with `noria down`"
        )
    return lock


def open_http_socket(config: SupervisorConfig) -> socket.socket | None:
    """Listen at the HTTP address for this and later gateways; None when an earlier start's gateway has it. Raises UserError."""
    if living_holder(config.folder, Service.GATEWAY.value) is not None:
        return None
    return listen(*split_address(config.http))


def remove_leftovers(config: SupervisorConfig) -> None:
    """Remove sockets, crash logs and the children's configuration; no service may be running."""
    last_output = [crash_log_path(config.folder, service.value) for service in START_ORDER]
    for left in (*config.folder.glob("*.sock"), *last_output, config.folder / CONFIG_NAME):
        left.unlink(missing_ok=True)


def prepare(config: SupervisorConfig) -> Path:
    """Write the children's configuration and return its path; leftovers go first when no service runs."""
    if not _running_services(config.folder):
        remove_leftovers(config)
    path = config.folder / CONFIG_NAME
    write(config.children, path)
    return path


def _running_services(folder: Path) -> list[LockRecord]:
    return [holder for service in START_ORDER if (holder := living_holder(folder, service.value)) is not None]


def _differences(path: Path, children: Config) -> tuple[str, ...]:
    """The names of options that differ between the running services and ours, except those that may."""
    try:
        theirs = msgspec.json.decode(path.read_bytes(), type=Config)
    except (OSError, msgspec.DecodeError):
        return (f"{path} cannot be read",)
    before, now = _flat(dump(theirs)), _flat(dump(children))
    return tuple(name for name, value in now.items() if before.get(name) != value and name not in _MAY_DIFFER)


def _flat(sections: dict[str, Any]) -> dict[str, object]:
    return {
        f"{section}.{key}": value
        for section, values in sections.items()
        if section not in ("classes", "tenants")
        for key, value in values.items()
    }
