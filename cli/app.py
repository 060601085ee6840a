"""The group of all commands; mistakes are reported in one line with the nearest right word, and exit status 2."""

import contextlib
import difflib
import errno
import importlib.metadata
import io
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Final

import click

from noria.cli.bench.command import bench
from noria.cli.commands.chat import chat
from noria.cli.commands.config import config
from noria.cli.commands.down import down
from noria.cli.commands.drain import drain
from noria.cli.commands.generate import generate
from noria.cli.commands.keys import keys
from noria.cli.commands.models import models
from noria.cli.commands.ps import ps
from noria.cli.commands.replay import replay, why
from noria.cli.commands.restart import restart
from noria.cli.commands.services import service_commands
from noria.cli.commands.trace import trace
from noria.cli.commands.up import EXIT_INTERRUPTED, up
from noria.cli.commands.usage import usage
from noria.cli.top.command import top
from noria.shared.errors import UserError

_UNWRITABLE: Final = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT)


class _CommandGroup(click.Group):
    """A group that names the nearest command and keeps the order in which commands were added."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order in which a newcomer needs them."""
        del ctx
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command. Raises UsageError naming the nearest one."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            hint = _suggestion(args[0], self.commands) or f"; known: {', '.join(self.commands)}"
            raise click.UsageError(f"there is no command {args[0]!r}{hint}", ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=_CommandGroup, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(importlib.metadata.version("noria"), message="noria %(version)s")
@click.pass_context
def noria(context: click.Context) -> None:
    """Serve large language models with continuous batching.

    Each option is looked up on the command line, in NORIA_ variables and in a TOML file (--config), in this order;
    `noria config` prints the effective configuration.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


for _command in (
    up,
    down,
    drain,
    restart,
    ps,
    generate,
    chat,
    bench,
    models,
    config,
    keys,
    usage,
    why,
    trace,
    top,
    replay,
    *service_commands(),
):
    noria.add_command(_command)


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit status."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a model may say what the terminal's encoding lacks
    try:
        result = noria.main(list(arguments), prog_name="noria", standalone_mode=False)
    except UserError as error:
        click.echo(f"noria: {error}", err=True)
        return 2
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx is not None else "noria"
        click.echo(f"noria: {_usage_message(error)} (see `{where} --help`)", err=True)
        return 2
    except click.ClickException as error:
        click.echo(f"noria: {error.format_message()}", err=True)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        # The reader of the output left, as `head` does, or its disk is full: nothing more can be written there, not even at exit.
        with contextlib.suppress(OSError), open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        if error.errno != errno.EPIPE:
            click.echo(f"noria: the output cannot be written: {error.strerror}", err=True)
        return 1
    return result if isinstance(result, int) else 0


def _usage_message(error: click.UsageError) -> str:
    if isinstance(error, click.NoSuchOption):
        context = error.ctx
        known = [flag for each in context.command.get_params(context) for flag in each.opts] if context else []
        return f"there is no option {error.option_name}{_suggestion(error.option_name, known)}"
    message = error.format_message().rstrip(".")
    return f"{message[:1].lower()}{message[1:]}"


def _suggestion(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else ""
