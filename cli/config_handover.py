"""Passes the effective configuration to another program, as TOML in an unnamed file that it inherits.

NORIA_ variables are removed from its environment: they would otherwise override flags, which the TOML already includes.
"""

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from typing import Any, NoReturn

import msgspec

from noria.shared.config.config import Config
from noria.shared.config.options import KEYED, VARIABLE_PREFIX
from noria.shared.config.sources import dump


def render_toml(config: Config, origins: dict[str, str] | None = None) -> str:
    """Return a configuration as TOML; with `origins`, a comment names the source of each option that is not at its default."""
    lines: list[str] = []
    for section, values in _sections(config):
        lines += ["", f"[{section}]"]
        for key, value in values.items():
            origin = (origins or {}).get(f"{section}.{key}")
            comment = f"  # {origin}" if origin else ""
            lines.append(f"# {key} is not set" if value is None else f"{key} = {_value(value)}{comment}")
    return "\n".join(lines[1:]) + "\n"


def _sections(config: Config) -> Iterator[tuple[str, dict[str, Any]]]:
    for section, values in dump(config).items():
        if section in KEYED:
            yield from ((f"{section}.{_name(name)}", table) for name, table in values.items())
        else:
            yield section, values


def _name(name: str) -> str:
    """Return a table's name in TOML: a dot inside needs quotes."""
    return f'"{name}"' if "." in name else name


def write_config_file(config: Config) -> int:
    """Write the configuration to an unnamed file and return its descriptor, which children may inherit."""
    with tempfile.TemporaryFile() as file:
        file.write(render_toml(config).encode())
        file.flush()
        return os.dup(file.fileno())


def module_command(module: str, descriptor: int) -> list[str]:
    """Return the command line that runs a module with the configuration in `descriptor`."""
    # -P: files of the working folder must not shadow modules.
    return [sys.executable, "-P", "-m", module, "--config", f"/dev/fd/{descriptor}"]


def environment_without_options() -> dict[str, str]:
    """Return the environment without NORIA_ variables."""
    return {name: value for name, value in os.environ.items() if not name.startswith(VARIABLE_PREFIX)}


def exec_module(module: str, config: Config) -> NoReturn:
    """Replace this process by a module of the product, with the given configuration; pid and terminal stay."""
    descriptor = write_config_file(config)
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.set_inheritable(descriptor, True)
    sys.stdout.flush()
    sys.stderr.flush()
    # Ctrl-C waits until the other program is ready for it: `noria.shared.process.service_process.main` lets it in.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    line = module_command(module, descriptor)
    os.execve(line[0], line, environment_without_options())  # noqa: S606 - our own interpreter and module


def _value(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            # A JSON string is a TOML string, but for the one control character that JSON leaves bare.
            return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")
        case list() | tuple():
            return f"[{', '.join(_value(each) for each in value)}]"
        case dict():
            return f"{{{', '.join(f'{_value(key)} = {_value(each)}' for key, each in value.items())}}}"
        case _:
            return str(value)
