"""The processes of the children: started here, or taken over from a supervisor that is gone.

Ours are waited for; of the others, which are no children of this process, a descriptor tells when they are gone. Knows
nothing of what should run.
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
from noria.shared.process.crash_log import last_words
from noria.shared.process.locks import Tenant, tenant

_MODULES: Final = "noria.services"


class Own:
    """A child that this supervisor started."""

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


class Foreign:
    """A service that another supervisor started: the descriptor names this very process, whoever gets its pid later."""

    status: int | None = None

    def __init__(self, found: Tenant) -> None:
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


Process = Own | Foreign


class Ending(msgspec.Struct, frozen=True):
    """How a service's process ended: see `events.Exited`."""

    service: Service
    pid: int
    status: int | None
    words: str


class Processes:
    """All of them, one for each service, and those that have a successor and only finish what they have begun.

    command: what runs a module with a configuration file. watch, unwatch: begin and stop taking a turn when a descriptor can
    be read.
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
        self.of: dict[Service, Process] = {}
        self.relieved: list[Process] = []

    def spawn(self, service: Service, variables: Mapping[str, str], inherited: tuple[int, ...] = ()) -> int:
        """Start a service with these variables and descriptors; returns its pid."""
        last_words(self._folder, service.value).unlink(missing_ok=True)
        command = self._command(f"{_MODULES}.{service.value}", self._config_path)
        child = Own(command, self._folder, {**child_environment(), **variables}, inherited)
        self.of[service] = child
        return child.pid

    def adopt(self, service: Service) -> int | None:
        """Take over whoever is this service in the folder, if somebody else is; returns the pid."""
        found = tenant(self._folder, service.value)
        if found is None:
            return None
        self._forget(service)
        child = Foreign(found)
        self.of[service] = child
        self._watch(child.descriptor)
        return child.pid

    def relieve(self, service: Service) -> None:
        """Keep a service's process in the background: its place is taken by another."""
        self.relieved.append(self.of.pop(service))

    def collect(self) -> list[Ending]:
        """Those that have ended since the last call; they are forgotten here."""
        endings = []
        for child in [each for each in self.relieved if each.ended()]:
            self.relieved.remove(child)
            self._release(child)
        for service, child in list(self.of.items()):
            if child.ended():
                self._forget(service)
                words = read_words(last_words(self._folder, service.value))
                endings.append(Ending(service, child.pid, child.status, words))
        return endings

    def kill_all(self) -> None:
        """End whatever is still there."""
        for child in (*self.of.values(), *self.relieved):
            child.send(signal.SIGKILL)

    def close(self) -> None:
        """Stop watching; processes live on."""
        for child in (*self.of.values(), *self.relieved):
            self._release(child)
        self.of.clear()
        self.relieved.clear()

    def _forget(self, service: Service) -> None:
        child = self.of.pop(service, None)
        if child is not None:
            self._release(child)

    def _release(self, child: Process) -> None:
        if isinstance(child, Foreign):
            self._unwatch(child.descriptor)
        child.close()


def read_words(path: Path) -> str:
    """What a process wrote down of its end, or nothing."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
