"""`noria restart`: restarts services one after the other while requests go on."""

import signal
import time
from pathlib import Path
from typing import Final

import click
import msgspec

from noria.cli.flags import config_flags, settings
from noria.cli.stack_processes import POLL_S, find_supervisor, send_signal
from noria.proto.base import Service
from noria.proto.lifecycle import State
from noria.shared.actor.endpoints import runtime_dir
from noria.shared.config.config import RuntimeSettings
from noria.shared.errors import UserError
from noria.shared.process.locks import LockRecord, living_holder

# From the inside out: a restarted service finds those that it depends on.
_ORDER: Final = (Service.DETOKENIZER, Service.EXECUTOR, Service.SCHEDULER, Service.ADMISSION, Service.GATEWAY)
_ALL: Final = "all"


class _AdmissionReadiness(msgspec.Struct, frozen=True):
    """The part of admission's snapshot that says which services it waits for before it accepts requests."""

    waiting_for: tuple[str, ...] = ()


@click.command()
@click.argument("services", nargs=-1, required=True, type=click.Choice([*(each.value for each in _ORDER), _ALL]))
@config_flags("runtime")
def restart(services: tuple[str, ...]) -> None:
    """Restart services one after the other without losing a request, for example to deploy a new version.

    Each service is stopped (SIGTERM) and started again by `noria up`; other services restore its state. Requests wait
    meanwhile, for the executor as long as the model loads. To replace `noria up` itself, kill it (SIGKILL) and start it
    again in the same folder: it takes over the running services.
    """
    runtime = settings().runtime
    folder = runtime_dir(runtime)
    find_supervisor(folder)
    chosen = [each for each in _ORDER if _ALL in services or each.value in services]
    for service in chosen:
        holder = living_holder(folder, service.value)
        began_s = time.monotonic()
        if holder is not None:
            send_signal(holder, signal.SIGTERM)
        successor = _wait_for_successor(runtime, folder, service, holder)
        _wait_until_accepting(runtime)
        before = str(holder.pid) if holder is not None else "absent"
        click.echo(f"{service.value}: {before} -> {successor.pid} in {time.monotonic() - began_s:.1f} s")


def _wait_for_successor(
    runtime: RuntimeSettings, folder: Path, service: Service, before: LockRecord | None
) -> LockRecord:
    """Wait until another process is this service, and ready. Raises UserError."""
    from noria.shared.actor.inspect import inspect

    deadline = time.monotonic() + runtime.start_timeout_s
    while time.monotonic() < deadline:
        holder = living_holder(folder, service.value)
        if holder is not None and (before is None or holder.pid != before.pid):
            snapshot = inspect(runtime, service)
            if snapshot is not None and snapshot.pid == holder.pid and snapshot.state is State.READY:
                return holder
        find_supervisor(folder)  # without one nobody starts anything
        time.sleep(POLL_S)
    raise UserError(f"no new {service.value} is ready after {runtime.start_timeout_s:g} s; see the log of `noria up`")


def _wait_until_accepting(runtime: RuntimeSettings) -> None:
    """Wait until requests are accepted again, before the next service is sent away. Raises UserError."""
    from noria.shared.actor.inspect import inspect

    deadline = time.monotonic() + runtime.start_timeout_s
    waiting: tuple[str, ...] = ()
    while time.monotonic() < deadline:
        snapshot = inspect(runtime, Service.ADMISSION)
        if snapshot is not None:
            waiting = msgspec.json.decode(snapshot.json, type=_AdmissionReadiness).waiting_for
            if not waiting:
                return
        time.sleep(POLL_S)
    raise UserError(
        f"requests are still not accepted after {runtime.start_timeout_s:g} s: waiting for {', '.join(waiting)}"
    )
