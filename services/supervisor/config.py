"""The supervisor's part of the configuration, and the command and environment of its children."""

import math
import os
import sys
from pathlib import Path
from typing import Final

import msgspec

from noria.services.supervisor.core.supervision_limits import SupervisionLimits
from noria.shared.actor.endpoints import runtime_dir, state_dir
from noria.shared.config.config import Config
from noria.shared.model.model_folder import cache_dir, resolve_model_folder, served_names

_DEATHS: Final = 5


class SupervisorConfig(msgspec.Struct, frozen=True):
    """The supervisor's limits, and the configuration that its children read.

    folder: the runtime folder. http: HOST:PORT of the gateway. children: the effective configuration, in which every path
    is absolute, so that it means the same whatever folder a child runs in.
    """

    folder: Path
    http: str
    limits: SupervisionLimits
    children: Config


def supervisor_config(config: Config) -> SupervisorConfig:
    """Build the supervisor's configuration. Raises UserError when the model cannot be found."""
    folder = runtime_dir(config.runtime)
    model = msgspec.structs.replace(
        config.model,
        name=str(resolve_model_folder(config.model)),
        served_names=served_names(config.model),
        cache_dir=str(cache_dir(config.model)),
    )
    runtime = msgspec.structs.replace(
        config.runtime,
        dir=str(folder),
        state_dir=str(state_dir(config.runtime)),
        curve_dir=str(Path(config.runtime.curve_dir).expanduser().absolute()) if config.runtime.curve_dir else "",
        supervised=True,
        config_file="",  # theirs is the one that is written for them
    )
    return SupervisorConfig(
        folder=folder,
        http=config.http.address,
        limits=_limits(config),
        children=msgspec.structs.replace(config, model=model, runtime=runtime),
    )


def _limits(config: Config) -> SupervisionLimits:
    settings = config.runtime
    # A bad request is found by rerunning those under suspicion in halves: each half may kill the executor once more.
    halvings = math.ceil(math.log2(config.scheduler.max_requests_per_batch))
    return SupervisionLimits(
        start_ns=int(settings.start_timeout_s * 1e9),
        stop_ns=int(settings.stop_timeout_s * 1e9),
        drain_ns=int(settings.drain_timeout_s * 1e9),
        hang_ns=int(settings.hang_timeout_s * 1e9),
        pause_ns=int(settings.restart_pause_s * 1e9),
        pause_max_ns=int(settings.longest_restart_pause_s * 1e9),
        deaths=settings.crash_loop_deaths or max(_DEATHS, halvings + 2),
    )


def child_command(module: str, config_path: Path) -> list[str]:
    """The command that runs one service; -P keeps files of the working folder from shadowing modules."""
    return [sys.executable, "-P", "-m", module, "--config", str(config_path)]


def child_environment() -> dict[str, str]:
    """The environment of children: without NORIA_ variables, since the configuration file carries everything."""
    return {name: value for name, value in os.environ.items() if not name.startswith("NORIA_")}
