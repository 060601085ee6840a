"""`noria down`: stop whatever runs in a runtime folder, in order."""

import os
import signal
import time
from pathlib import Path
from typing import Final

import click

from noria.cli.flags import config_flags, settings
from noria.proto.base import Service
from noria.shared.endpoints import runtime_dir
from noria.shared.errors import UserError
from noria.shared.locks import Holder, living_holder

_POLL_S: Final = 0.05
_PROC: Final = Path("/proc/self")
_MARGIN_S: Final = 5.0
# The enumeration's order is the order of the doors: no service outlives one that still writes to it.
_SERVICES: Final = tuple(service for service in Service if service is not Service.SUPERVISOR)


@click.command()
@config_flags("runtime")
def down() -> None:
    """Stop the stack of this runtime folder.

    Services that a killed supervisor left behind are stopped too.
    """
    runtime = settings().runtime
    folder = runtime_dir(runtime)
    stopped = []
    supervisor = living_holder(folder, Service.SUPERVISOR.value)
    if supervisor is not None:
        _signal(supervisor, signal.SIGTERM)
        patience_s = runtime.drain_timeout_s + len(_SERVICES) * runtime.stop_timeout_s + _MARGIN_S
        if not _gone(folder, supervisor, patience_s):
            raise UserError(f"the supervisor, process {supervisor.pid}, does not stop; kill it and run this again")
        stopped.append(supervisor)
    for service in _SERVICES:
        holder = living_holder(folder, service.value)
        if holder is not None:
            _stop(folder, holder, runtime.stop_timeout_s)
            stopped.append(holder)
    if not stopped:
        click.echo(f"nothing runs in {folder}")
        return
    click.echo("stopped " + ", ".join(f"{holder.service} ({holder.pid})" for holder in stopped))


def _stop(folder: Path, holder: Holder, timeout_s: float) -> None:
    _signal(holder, signal.SIGTERM)
    if _gone(folder, holder, timeout_s):
        return
    _signal(holder, signal.SIGKILL)
    if not _gone(folder, holder, _MARGIN_S):
        raise UserError(f"{holder.service}, process {holder.pid}, cannot be killed")


def _signal(holder: Holder, number: signal.Signals) -> None:
    """Signal the holder of a lock, but no innocent process: a lock may be held from another container."""
    title = Path(f"/proc/{holder.pid}/cmdline")
    try:
        if holder.pid <= 0 or (_PROC.exists() and b"noria" not in title.read_bytes()):
            raise UserError(f"{holder.service} runs outside of this container; stop it where it was started")
        os.kill(holder.pid, number)
    except (FileNotFoundError, ProcessLookupError):
        return
    except PermissionError as error:
        raise UserError(f"{holder.service}, process {holder.pid}, belongs to another user") from error


def _gone(folder: Path, holder: Holder, timeout_s: float) -> bool:
    """Wait until the lock is free and its process, which unloads a large library last, has left too."""
    deadline = time.monotonic() + timeout_s
    while living_holder(folder, holder.service) is not None or _alive(holder.pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _alive(pid: int) -> bool:
    """Whether a process runs; one that has ended but has not been collected by its parent does not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except (FileNotFoundError, PermissionError):
        return not _PROC.exists()
