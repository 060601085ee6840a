"""Where each mailbox is: ipc sockets in a private runtime folder, or tcp ports by configuration."""

import ipaddress
import os
import tempfile
from pathlib import Path
from typing import Final

from noria.proto.base import Service
from noria.shared.config.config import RuntimeSettings
from noria.shared.errors import UserError

IPC_PATH_BYTES_MAX: Final = 107  # sun_path holds 108 bytes with the closing zero
PUBLIC: Final = "public"
_PORTS: Final = (*(service.value for service in Service), PUBLIC)


def runtime_dir(settings: RuntimeSettings) -> Path:
    """The runtime folder: as configured, else under XDG_RUNTIME_DIR, else a per-user folder in the temporary one."""
    if settings.dir:
        return Path(settings.dir).expanduser().absolute()
    base = os.environ.get("XDG_RUNTIME_DIR")
    return Path(base) / "noria" if base else Path(tempfile.gettempdir()) / f"noria-{os.getuid()}"


def prepare_runtime_dir(settings: RuntimeSettings) -> Path:
    """Create the runtime folder with mode 0700 and check that it is ours alone and short enough for sockets.

    Raises UserError when it is not.
    """
    path = runtime_dir(settings)
    longest = max(len(os.fsencode(path / f"{name}.sock")) for name in _PORTS)
    if settings.transport == "ipc" and longest > IPC_PATH_BYTES_MAX:
        raise UserError(
            f"the runtime folder {path} is too long: a socket's path in it would have {longest} bytes, at most "
            f"{IPC_PATH_BYTES_MAX} are possible; choose a shorter one with --runtime-dir"
        )
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
    except OSError as error:
        raise UserError(
            f"cannot create the runtime folder {path}: {error.strerror}; choose another with --runtime-dir"
        ) from error
    if not path.is_dir():
        raise UserError(f"the runtime folder {path} is not a folder; choose another with --runtime-dir")
    if status.st_uid != os.getuid():
        raise UserError(f"the runtime folder {path} belongs to user {status.st_uid}; choose another with --runtime-dir")
    if status.st_mode & 0o077:
        raise UserError(f"the runtime folder {path} is open to others (mode {status.st_mode & 0o777:o}); chmod 700 it")
    return path


def state_dir(settings: RuntimeSettings) -> Path:
    """The folder for files that outlive the processes: as configured, else inside a configured runtime folder, else the user's."""
    if settings.state_dir:
        return Path(settings.state_dir).expanduser().absolute()
    if settings.dir:
        return runtime_dir(settings) / "state"
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "noria"


def mailbox(settings: RuntimeSettings, service: Service, *, binding: bool = False) -> str:
    """The endpoint of a service's internal mailbox, as bound by its owner or as others connect to it."""
    return _endpoint(settings, service.value, service, binding=binding)


def public_mailbox(settings: RuntimeSettings, *, binding: bool = False) -> str:
    """The endpoint of admission's public mailbox."""
    return _endpoint(settings, PUBLIC, Service.ADMISSION, binding=binding)


def split_address(address: str) -> tuple[str, int]:
    """HOST:PORT as a pair; an IPv6 host stands in brackets. Raises UserError."""
    host, separator, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not separator or not host or not port.isdecimal() or int(port) > 65535:
        raise UserError(f"http.address is {address!r}; write it as HOST:PORT, as in 127.0.0.1:8000")
    return host, int(port)


def _endpoint(settings: RuntimeSettings, name: str, owner: Service, *, binding: bool) -> str:
    if settings.transport == "ipc":
        return f"ipc://{runtime_dir(settings) / name}.sock"
    port = settings.base_port + _PORTS.index(name)
    if binding:
        _check_bind(settings)
        return f"tcp://{settings.bind_host}:{port}"
    return f"tcp://{settings.hosts.get(owner.value, '127.0.0.1')}:{port}"


def _check_bind(settings: RuntimeSettings) -> None:
    host = settings.bind_host
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback and not settings.curve_dir and not settings.insecure_tcp:
        raise UserError(
            f"refusing to bind tcp on {host}: it is reachable from other machines and messages are not encrypted; use ipc, "
            "a loopback address, keys (`noria keys curve DIR`, then --curve-dir DIR), "
            "or --insecure-tcp on a network that only the stack can reach"
        )
