"""What the supervisor takes from the configuration."""

import os
import sys
from pathlib import Path

import msgspec

from noria.shared.config import Config
from noria.shared.endpoints import runtime_dir, state_dir
from noria.shared.models import cache_dir, resolve, served_names


class SupervisorConfig(msgspec.Struct, frozen=True):
    """How patient the supervisor is, and the configuration that its children read.

    folder: the runtime folder. children: the effective configuration, in which every path is absolute, so that it means
    the same whatever folder a child runs in.
    """

    folder: Path
    http: str
    start_timeout_ns: int
    stop_timeout_ns: int
    children: Config


def supervisor_config(config: Config) -> SupervisorConfig:
    """Take what the supervisor needs. Raises UserError when the model is not there."""
    folder = runtime_dir(config.runtime)
    model = msgspec.structs.replace(
        config.model,
        name=str(resolve(config.model)),
        served_names=served_names(config.model),
        cache_dir=str(cache_dir(config.model)),
    )
    runtime = msgspec.structs.replace(
        config.runtime,
        dir=str(folder),
        state_dir=str(state_dir(config.runtime)),
        supervised=True,
        config_file="",  # theirs is the one that is written for them
    )
    return SupervisorConfig(
        folder=folder,
        http=config.http.address,
        start_timeout_ns=int(config.runtime.start_timeout_s * 1e9),
        stop_timeout_ns=int(config.runtime.stop_timeout_s * 1e9),
        children=msgspec.structs.replace(config, model=model, runtime=runtime),
    )


def child_command(module: str, config_path: Path) -> list[str]:
    """The command that runs one service; -P keeps files of the working folder from shadowing modules."""
    return [sys.executable, "-P", "-m", module, "--config", str(config_path)]


def child_environment() -> dict[str, str]:
    """The environment of children: without NORIA_ variables, since the configuration file carries everything."""
    return {name: value for name, value in os.environ.items() if not name.startswith("NORIA_")}
