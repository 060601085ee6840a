"""`noria drain`: stops a stack once its accepted requests are finished, and shows how many are left."""

import signal
from typing import Final

import click
import msgspec

from noria.cli.flags import config_flags, settings
from noria.cli.stack_processes import find_supervisor, send_signal, wait_until_gone
from noria.proto.base import Service
from noria.proto.lifecycle import State
from noria.shared.actor.endpoints import runtime_dir

_ANSWER_S: Final = 5.0
_SHOW_EVERY_S: Final = 1.0


class _AdmissionBacklog(msgspec.Struct, frozen=True):
    """The part of admission's snapshot that counts unfinished requests."""

    requests: int = 0


@click.command()
@config_flags("runtime")
def drain() -> None:
    """Stop the stack once its accepted requests are finished; print how many are left.

    New requests are refused meanwhile. After runtime.drain_timeout_s the stack stops anyway; requests in the journal go on at
    the next start.
    Ctrl-C only ends this command.
    """
    from noria.shared.actor.inspect import inspect

    runtime = settings().runtime
    folder = runtime_dir(runtime)
    supervisor = find_supervisor(folder)
    snapshot = inspect(runtime, Service.SUPERVISOR, _ANSWER_S)
    if snapshot is None or snapshot.state is not State.DRAINING:  # a second signal would mean: at once
        send_signal(supervisor, signal.SIGTERM)
    printed = -1
    wait_s = 0.0  # the first look is taken at once: little work is done within a second
    while not wait_until_gone(folder, supervisor, wait_s):
        wait_s = _SHOW_EVERY_S
        admission = inspect(runtime, Service.ADMISSION)
        if admission is None:
            continue
        left = msgspec.json.decode(admission.json, type=_AdmissionBacklog).requests
        if left != printed:
            printed = left
            click.echo(f"{left} {'request is' if left == 1 else 'requests are'} unfinished")
    click.echo(f"stopped the stack of {folder}")
