"""Command-line flags for configuration options, and the effective configuration from flags, variables and file.

No option is declared here: names, types, bounds and help come from `noria.shared.config.config`.
"""

import os
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Literal, TypeVar, get_args, get_origin

import click
import msgspec

from noria.shared.config.config import Config
from noria.shared.config.options import Option, options, parse
from noria.shared.config.sources import CONFIG_VARIABLE, load

_FLAGS: Final = "noria.flags"
_FILE: Final = "noria.file"
_Command = TypeVar("_Command", bound=Callable[..., object])


def config_flags(*sections: str) -> Callable[[_Command], _Command]:
    """Add `--config` and the flags of these sections, or of all sections when none is named, to a command.

    The command reads the result with `settings()`; the flags are not among its parameters.
    """

    def decorate(command: _Command) -> _Command:
        for option in reversed(list(options())):
            if option.flags and (not sections or option.section in sections):
                command = _flag(option)(command)
        return click.option(
            "--config",
            "config_file",
            type=click.Path(dir_okay=False),
            expose_value=False,
            is_eager=True,
            callback=_keep_file,
            help="TOML file with options; the variable NORIA_CONFIG names one too.",
        )(command)

    return decorate


def settings() -> Config:
    """Return the effective configuration of the running command. Raises UserError naming what is wrong."""
    file, flags = sources()
    return load(file, flags)


def settings_to_run() -> Config:
    """Return the effective configuration for a program that serves: names the file that it reads again at SIGHUP."""
    file, _ = sources()
    config = settings()
    named = file or os.environ.get(CONFIG_VARIABLE)
    if not named or config.runtime.config_file:
        return config
    runtime = msgspec.structs.replace(config.runtime, config_file=str(Path(named).absolute()))
    return msgspec.structs.replace(config, runtime=runtime)


def sources() -> tuple[str | None, Mapping[str, object]]:
    """Return the configuration file of the running command, and its flags by dotted option path."""
    meta = click.get_current_context().meta
    return meta.get(_FILE), meta.get(_FLAGS, {})


def _keep_file(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    del parameter
    if value is not None:
        context.meta[_FILE] = value


def _flag(option: Option) -> Callable[[_Command], _Command]:
    def keep(context: click.Context, parameter: click.Parameter, value: object) -> None:
        del parameter
        if value is None or value == ():
            return
        if isinstance(value, str):
            value = parse(option, value, option.flags[0])
        context.meta.setdefault(_FLAGS, {})[option.path] = value

    name = option.path.replace(".", "__")
    help_text = f"{option.help}{_default(option)}"
    origin = get_origin(option.type)
    if option.type is bool:
        # What is on by default needs a flag that turns it off.
        names = [f"{flag}/--no-{flag.removeprefix('--')}" if option.default else flag for flag in option.flags]
        return click.option(*names, name, is_flag=True, default=None, expose_value=False, callback=keep, help=help_text)
    choices = [str(choice) for choice in get_args(option.type)] if origin is Literal else None
    return click.option(
        *option.flags,
        name,
        type=click.Choice(choices) if choices else click.STRING,
        metavar=None if choices else _metavar(option),
        multiple=origin is tuple,
        default=None,
        expose_value=False,
        callback=keep,
        help=help_text,
    )


def _metavar(option: Option) -> str:
    origin = get_origin(option.type)
    kind = get_args(option.type)[0] if origin in (types.UnionType, tuple) else option.type
    while get_args(kind):
        kind = get_args(kind)[0]
    return {int: "N", float: "X"}.get(kind, "TEXT")


def _default(option: Option) -> str:
    if option.default is None or option.default == "" or option.default is False or option.default == ():
        return ""
    return f" [default: {option.default}]"
