"""`noria chat`: holds a conversation in the terminal, with history."""

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import click

from noria.cli.commands.generation_flags import (
    generation_options,
    open_client,
    print_failure,
    sampling_flags,
    stream_to_terminal,
)
from noria.cli.flags import config_flags, settings
from noria.shared.errors import UserError

if TYPE_CHECKING:
    from noria.client import Client
    from noria.client.generate_request import Options

_HELP: Final = "/reset forgets the conversation, /exit or Ctrl-D ends it, Ctrl-C cancels an answer"


@click.command()
@click.option("--system", default="", help="System prompt.")
@sampling_flags
@config_flags("runtime")
def chat(system: str) -> None:
    """Chat with the served model."""
    runtime = settings().runtime
    with open_client(runtime) as client:
        if not client.describe().has_chat_template:
            raise UserError("the served model has no chat template; use `noria generate --raw`")
        click.echo(_HELP)
        converse(client, system, generation_options(), _ask)


def converse(client: "Client", system: str, options: "Options", ask: Callable[[], str | None]) -> None:
    """Answer what `ask` returns, turn by turn, until it returns None; commands begin with a slash."""
    first = [{"role": "system", "content": system}] if system else []
    history = list(first)
    while (line := ask()) is not None:
        match line.strip():
            case "":
                continue
            case "/exit" | "/quit":
                return
            case "/reset":
                history = list(first)
                click.echo("forgotten")
            case "/help":
                click.echo(_HELP)
            case command if command.startswith("/"):
                click.echo(f"there is no command {command}; {_HELP}")
            case _:
                history = _turn(client, history, line, options)


def _turn(client: "Client", history: list[dict[str, str]], line: str, options: "Options") -> list[dict[str, str]]:
    """Ask one question; returns the history with question and answer, or unchanged when the answer failed or was cancelled."""
    from noria.client import Refused

    asked = [*history, {"role": "user", "content": line}]
    try:
        with client.generate(messages=asked, **options) as generation:
            text, finish = stream_to_terminal(generation)
    except KeyboardInterrupt:
        click.echo("\n(cancelled)")
        return history
    except Refused as error:
        click.echo(f"noria: {error}", err=True)
        return history
    if print_failure(finish) != 0:
        return history
    return [*asked, {"role": "assistant", "content": text}]


def _ask() -> str | None:
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - gives input() a history and editing
    while True:
        try:
            return input("> ")
        except EOFError:
            click.echo()
            return None
        except KeyboardInterrupt:
            click.echo("\n(Ctrl-D ends)")
