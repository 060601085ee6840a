"""`noria up`: runs the whole stack in the foreground, after fetching its model where needed."""

import contextlib
import http.client
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import click

from noria.cli.commands.generate import print_answer
from noria.cli.config_handover import environment_without_options, exec_module, module_command, write_config_file
from noria.cli.flags import config_flags, settings_to_run
from noria.proto.base import Service
from noria.proto.lifecycle import State
from noria.shared.actor.endpoints import prepare_runtime_dir, split_address
from noria.shared.config.config import Config, RuntimeSettings
from noria.shared.errors import UserError
from noria.shared.model.model_folder import resolve_model_folder

if TYPE_CHECKING:
    from noria.client.generate_request import Options

_SUPERVISOR: Final = "noria.services.supervisor"
_POLL_S: Final = 0.1
EXIT_INTERRUPTED: Final = 130
_FIRST_ANSWER_TOKENS: Final = 64


@click.command()
@click.option("--prompt", help="Once ready, stream the answer to this prompt into the terminal.")
@click.option("--once", is_flag=True, help="With --prompt: stop after the answer; the exit status is 1 if it failed.")
@config_flags()
def up(prompt: str | None, once: bool) -> int:
    """Start every service and serve until Ctrl-C."""
    if once and prompt is None:
        raise UserError("--once needs --prompt")
    config = settings_to_run()
    prepare_runtime_dir(config.runtime)  # refused before a model is fetched rather than after
    fetch(config)
    if prompt is None:
        exec_module(_SUPERVISOR, config)
    return _serve_and_ask(config, prompt, once=once)


def fetch(config: Config) -> None:
    """Fetch the model, with a progress bar, unless it is there already. Raises UserError when it cannot be fetched."""
    try:
        resolve_model_folder(config.model)
    except UserError:
        # Only now, because the import is heavy and seldom needed.
        from noria.cli.model_files.fetch import ensure
        from noria.cli.model_files.progress import progress_bar

        with progress_bar() as report:
            ensure(config.model, report)


def _serve_and_ask(config: Config, prompt: str, *, once: bool) -> int:
    """Run the supervisor as a child, print the answer to `prompt`, and serve on unless `once`; signals are forwarded to it."""
    host, port = _reachable(config.http.address)
    descriptor = write_config_file(config)
    # In a session of its own, so that one Ctrl-C reaches it exactly once: forwarded by this process.
    supervisor = subprocess.Popen(  # noqa: S603 - our own interpreter and module
        module_command(_SUPERVISOR, descriptor),
        env=environment_without_options(),
        pass_fds=(descriptor,),
        start_new_session=True,
    )
    os.close(descriptor)
    asked_to_stop = False
    status = 1
    with _forwarded_signals(supervisor):
        try:
            if not _wait_until_ready(config.runtime, host, port, supervisor):
                return _exit_status(supervisor.wait()) or 1
            click.echo(f"\n> {prompt}\n")
            options: Options = {"max_tokens": _FIRST_ANSWER_TOKENS, "temperature": 0.0}
            status = print_answer(config.runtime, prompt, system="", raw=False, as_json=False, options=options)
            if once or status != 0:
                supervisor.send_signal(signal.SIGTERM)
            else:
                click.echo(f"\nserving http://{config.http.address}/v1 until Ctrl-C", err=True)
        except KeyboardInterrupt:
            asked_to_stop = True
        except UserError as error:
            click.echo(f"noria: {error}", err=True)
            supervisor.send_signal(signal.SIGTERM)
        except BaseException:
            supervisor.send_signal(signal.SIGTERM)
            raise
        ended = _wait_for_exit(supervisor)
    return ended or (EXIT_INTERRUPTED if asked_to_stop else status)


def _reachable(address: str) -> tuple[str, int]:
    """Return the host and port at which a program on this machine reaches a bound address. Raises UserError."""
    host, port = split_address(address)
    if not port:
        raise UserError("--prompt needs a fixed port: give --http a port from 1 to 65535")
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port  # noqa: S104 - not bound


def _wait_until_ready(runtime: RuntimeSettings, host: str, port: int, supervisor: "subprocess.Popen[bytes]") -> bool:
    """Wait until the stack's HTTP server says that it is ready; False when the supervisor ended instead."""
    from noria.shared.actor.inspect import inspect

    while supervisor.poll() is None:
        # First our own supervisor: until it is ready, what answers at the address may be another stack.
        snapshot = inspect(runtime, Service.SUPERVISOR)
        if snapshot is None or snapshot.pid != supervisor.pid or snapshot.state is not State.READY:
            time.sleep(_POLL_S)
            continue
        connection = http.client.HTTPConnection(host, port, timeout=2)
        with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(connection):
            connection.request("GET", "/ready")
            if connection.getresponse().status == http.client.OK:
                return True
        time.sleep(_POLL_S)
    return False


@contextlib.contextmanager
def _forwarded_signals(supervisor: "subprocess.Popen[bytes]") -> Iterator[None]:
    """Send the supervisor SIGTERM for each Ctrl-C, SIGTERM or SIGHUP that comes during the body."""

    def forward(number: int, frame: object) -> None:
        del number, frame
        supervisor.send_signal(signal.SIGTERM)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait_for_exit(supervisor: "subprocess.Popen[bytes]") -> int:
    while True:
        try:
            return _exit_status(supervisor.wait())
        except KeyboardInterrupt:
            continue


def _exit_status(status: int) -> int:
    """Return an exit status as shells do: 128 plus the signal's number for a death by signal."""
    sys.stdout.flush()
    return status if status >= 0 else 128 - status
