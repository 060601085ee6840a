"""The runtime folder as the supervisor's premises: taken with a lock, cleared of leftovers, furnished with a configuration."""

import os
from pathlib import Path
from typing import Final

from noria.proto.base import Service
from noria.services.supervisor.config import SupervisorConfig
from noria.services.supervisor.core.stack import START_ORDER
from noria.shared.config_sources import write
from noria.shared.endpoints import prepare_runtime_dir
from noria.shared.errors import UserError
from noria.shared.locks import Holder, Lock, living_holder

CONFIG_NAME: Final = "effective.json"


def take(config: SupervisorConfig) -> Lock:
    """Own the runtime folder, or say who does.

    Raises UserError when another supervisor runs in it, or when services of one that was killed still do.
    """
    folder = prepare_runtime_dir(config.children.runtime)
    lock = Lock(folder, Service.SUPERVISOR.value)
    owner = lock.acquire(Holder(Service.SUPERVISOR.value, os.getpid(), "", config.http))
    if owner is not None:
        serving = f", serving http://{owner.http}" if owner.http else ""
        raise UserError(
            f"noria already runs in {folder} as process {owner.pid}{serving}; stop it with `noria down` or choose "
            "another --runtime-dir and --http"
        )
    left = [holder for service in START_ORDER if (holder := living_holder(folder, service.value)) is not None]
    if left:
        lock.release()
        names = ", ".join(f"{holder.service} ({holder.pid})" for holder in left)
        raise UserError(f"services of an earlier start still run in {folder}: {names}; stop them with `noria down`")
    return lock


def clear(config: SupervisorConfig) -> None:
    """Remove sockets and the children's configuration; nobody may be running."""
    for left in (*config.folder.glob("*.sock"), config.folder / CONFIG_NAME):
        left.unlink(missing_ok=True)


def furnish(config: SupervisorConfig) -> Path:
    """Remove what an earlier life left and write the children's configuration; returns its path."""
    clear(config)
    path = config.folder / CONFIG_NAME
    write(config.children, path)
    return path
