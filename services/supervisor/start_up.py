"""Starts a supervisor: takes the runtime folder, opens the HTTP socket, binds the mailbox, and runs until the end."""

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import zmq

from noria.proto.base import Service
from noria.services.supervisor import runtime_folder
from noria.services.supervisor.config import child_command, supervisor_config
from noria.services.supervisor.core.stack_phase import START_ORDER
from noria.services.supervisor.service import Supervisor
from noria.shared.actor.actor import Actor
from noria.shared.actor.endpoints import mailbox
from noria.shared.actor.mailbox import Mailbox
from noria.shared.config.config import Config
from noria.shared.errors import UserError
from noria.shared.process.listener import address_of
from noria.shared.process.locks import LockRecord
from noria.shared.process.service_process import attach_telemetry
from noria.shared.telemetry.telemetry import Telemetry


def start(config: Config, command: Callable[[str, Path], list[str]] = child_command) -> int:
    """Run the whole stack in the foreground; returns the exit status.

    command: makes the command line for a service's module and its configuration file.
    Raises UserError when the model is missing, the runtime folder is taken, or the mailbox cannot be bound.
    """
    own = supervisor_config(config)
    runtime = own.children.runtime
    lock = runtime_folder.acquire(own)
    listener: socket.socket | None = None
    try:
        listener = runtime_folder.open_http_socket(own)
        if listener is not None:
            own = msgspec.structs.replace(own, http=address_of(listener, own.http))
        path = runtime_folder.prepare(own)
        endpoint = mailbox(runtime, Service.SUPERVISOR, binding=True)
        try:
            own_mailbox = Mailbox(
                Service.SUPERVISOR,
                endpoint,
                {service: mailbox(runtime, service) for service in START_ORDER},
                runtime,
            )
        except zmq.ZMQError as error:
            raise UserError(f"cannot bind {endpoint}: {error.strerror}; choose another --base-port") from error
        lock.sign(LockRecord(Service.SUPERVISOR.value, os.getpid(), f"{own_mailbox.incarnation:x}", own.http))
        actor = Actor(own_mailbox, runtime)
        telemetry = Telemetry(Service.SUPERVISOR, own_mailbox.incarnation, config.telemetry)
        attach_telemetry(actor, telemetry)
        shell = Supervisor(own, path, actor, command, config, telemetry, listener)
        shell.listen_to_signals()
        try:
            actor.run(shell)
        except BaseException:
            sys.stderr.write(
                "noria: the supervisor failed; services live on: `noria up` takes them over, `noria down` stops them\n"
            )
            raise
        finally:
            telemetry.close()
        runtime_folder.remove_leftovers(own)
    finally:
        if listener is not None:
            listener.close()
        lock.release()
    if shell.outcome.cause:
        sys.stderr.write(f"noria: {shell.outcome.cause}\n")
    return shell.outcome.exit_status
