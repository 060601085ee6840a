"""`noria down`: stops the stack of a runtime folder, and services that a killed supervisor left behind."""

import signal
import time
from pathlib import Path
from typing import Final

import click

from noria.cli.flags import config_flags, settings
from noria.cli.stack_processes import send_signal, wait_until_gone
from noria.proto.base import Service
from noria.shared.actor.endpoints import runtime_dir
from noria.shared.errors import UserError
from noria.shared.process.locks import LockRecord, living_holder

_MARGIN_S: Final = 5.0
_SECOND_SIGNAL_S: Final = 0.3
# From the outside in, as the enumeration has it: no service stops before one that still writes to it.
_SERVICES: Final = tuple(service for service in Service if service is not Service.SUPERVISOR)


@click.command()
@click.option(
    "--now", is_flag=True, help="Do not let accepted requests finish; requests in the journal go on at the next start."
)
@config_flags("runtime")
def down(now: bool) -> None:
    """Stop the stack of this runtime folder.

    Accepted requests may finish first, for up to runtime.drain_timeout_s. Services that a killed supervisor left behind
    are stopped too.
    """
    config = settings()
    runtime = config.runtime
    folder = runtime_dir(runtime)
    stopped = []
    supervisor = living_holder(folder, Service.SUPERVISOR.value)
    if supervisor is not None:
        send_signal(supervisor, signal.SIGTERM)
        if now:
            time.sleep(_SECOND_SIGNAL_S)  # two signals at one time would be one
            send_signal(supervisor, signal.SIGTERM)
        finishing_s = runtime.drain_timeout_s + config.http.drain_timeout_s
        timeout_s = finishing_s + len(_SERVICES) * runtime.stop_timeout_s + _MARGIN_S
        if not wait_until_gone(folder, supervisor, timeout_s):
            raise UserError(f"the supervisor, process {supervisor.pid}, does not stop; kill it and run this again")
        stopped.append(supervisor)
    for service in _SERVICES:
        holder = living_holder(folder, service.value)
        if holder is not None:
            drain_s = config.http.drain_timeout_s if service is Service.GATEWAY else 0.0
            _stop(folder, holder, drain_s + runtime.stop_timeout_s)
            stopped.append(holder)
    if not stopped:
        click.echo(f"nothing runs in {folder}")
        return
    click.echo("stopped " + ", ".join(f"{holder.service} ({holder.pid})" for holder in stopped))


def _stop(folder: Path, holder: LockRecord, timeout_s: float) -> None:
    send_signal(holder, signal.SIGTERM)
    if wait_until_gone(folder, holder, timeout_s):
        return
    send_signal(holder, signal.SIGKILL)
    if not wait_until_gone(folder, holder, _MARGIN_S):
        raise UserError(f"{holder.service}, process {holder.pid}, cannot be killed")
