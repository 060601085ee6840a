"""The processes of the supervised services: started here, or adopted from a supervisor that is gone.

A started process is waited for; an adopted one is no child of this process, so a pidfd shows when it ends. Decides
nothing about what should run.
"""

import contextlib
import os
import select
import signal
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from noria.proto.base import Service
from noria.services.supervisor.config import child_environment
from noria.shared.process.crash_log import crash_log_path
from noria.shared.process.locks import LockOwner, lock_owner

_MODULES: Final = "noria.services"


class SpawnedProcess:
    """A service process that this supervisor started."""

    def __init__(
        self, command: list[str], folder: Path, environment: Mapping[str, str], inherited: tuple[int, ...]
    ) -> None:
        # A session of its own: Ctrl-C in the terminal reaches the supervisor alone.
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            command,
            stdin=subprocess.DEVNULL,
            env=environment,
            cwd=folder,
            start_new_session=True,
            pass_fds=inherited,
        )
        self.pid = self._process.pid

    def ended(self) -> bool:
        """Whether it is gone."""
        return self._process.poll() is not None

    @property
    def status(self) -> int | None:
        """Its exit status once it is gone, or minus the signal that ended it."""
        return self._process.returncode

    def send(self, number: signal.Signals) -> None:
        """Signal it, if it is still there."""
        self._process.send_signal(number)

    def close(self) -> None:
        """Nothing to release."""


class AdoptedProcess:
    """A service process that an earlier supervisor started.

    Signals go through a pidfd, which stays with this process even when its pid is used again. status is always None.
    """

    status: int | None = None

    def __init__(self, found: LockOwner) -> None:
        self.pid = found.holder.pid
        self.descriptor = found.descriptor

    def ended(self) -> bool:
        """Whether it is gone."""
        return bool(select.select([self.descriptor], [], [], 0)[0])

    def send(self, number: signal.Signals) -> None:
        """Signal it, if it is still there."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.descriptor, number)

    def close(self) -> None:
        """Release the descriptor."""
        os.close(self.descriptor)


ChildProcess = SpawnedProcess | AdoptedProcess


class ProcessExit(msgspec.Struct, frozen=True):
    """How a service's process ended.

    status: its exit status, minus the signal that ended it, or None for an adopted process. last_output: its last lines.
    """

    service: Service
    pid: int
    status: int | None
    last_output: str


class ChildProcesses:
    """The processes of all services, one for each, and retired ones that finish their open work.

    command: makes the command line for a module and a configuration file. watch, unwatch: begin and stop waking the actor
    when a descriptor becomes readable.
    """

    def __init__(
        self, folder: Path, config_path: Path, command: Callable[[str, Path], list[str]], watch: Callable[[int], None],
        unwatch: Callable[[int], None],
    ) -> None:  # fmt: skip
        self._folder = folder
        self._config_path = config_path
        self._command = command
        self._watch = watch
        self._unwatch = unwatch
        self.by_service: dict[Service, ChildProcess] = {}
        self.retired: list[ChildProcess] = []

    def spawn(self, service: Service, variables: Mapping[str, str], inherited: tuple[int, ...] = ()) -> int:
        """Start a service with these environment variables and inherited descriptors; returns its pid."""
        crash_log_path(self._folder, service.value).unlink(missing_ok=True)
        command = self._command(f"{_MODULES}.{service.value}", self._config_path)
        child = SpawnedProcess(command, self._folder, {**child_environment(), **variables}, inherited)
        self.by_service[service] = child
        return child.pid

    def adopt(self, service: Service) -> int | None:
        """Take over a running process of this service; returns its pid, or None when there is none."""
        found = lock_owner(self._folder, service.value)
        if found is None:
            return None
        self._forget(service)
        child = AdoptedProcess(found)
        self.by_service[service] = child
        self._watch(child.descriptor)
        return child.pid

    def retire(self, service: Service) -> None:
        """Let a service's process finish in the background, so that another can take its place."""
        self.retired.append(self.by_service.pop(service))

    def collect(self) -> list[ProcessExit]:
        """Return the processes that have ended since the last call, and forget them."""
        endings = []
        for child in [each for each in self.retired if each.ended()]:
            self.retired.remove(child)
            self._release(child)
        for service, child in list(self.by_service.items()):
            if child.ended():
                self._forget(service)
                last_output = read_last_output(crash_log_path(self._folder, service.value))
                endings.append(ProcessExit(service, child.pid, child.status, last_output))
        return endings

    def kill_all(self) -> None:
        """Send SIGKILL to every process that is left, retired ones included."""
        for child in (*self.by_service.values(), *self.retired):
            child.send(signal.SIGKILL)

    def close(self) -> None:
        """Stop watching all processes; they go on running."""
        for child in (*self.by_service.values(), *self.retired):
            self._release(child)
        self.by_service.clear()
        self.retired.clear()

    def _forget(self, service: Service) -> None:
        child = self.by_service.pop(service, None)
        if child is not None:
            self._release(child)

    def _release(self, child: ChildProcess) -> None:
        if isinstance(child, AdoptedProcess):
            self._unwatch(child.descriptor)
        child.close()


def read_last_output(path: Path) -> str:
    """Read what a process wrote to its crash log; empty when there is none."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
