"""Reloads traffic classes and tenants at SIGHUP: writes them to the services' file, then signals each service."""

import signal
from pathlib import Path

import msgspec

from noria.proto.base import Service
from noria.services.supervisor.child_processes import ChildProcesses
from noria.shared.actor.actor import Actor
from noria.shared.config.config import Config
from noria.shared.config.sources import write
from noria.shared.process.service_process import reload


class PolicyReload:
    """Rewrites the services' configuration file at SIGHUP, and sends SIGHUP to each service once it handles signals.

    original: the configuration as the user gave it. children: as the services read it, at `path`.
    """

    def __init__(self, original: Config, children: Config, path: Path, processes: ChildProcesses, actor: Actor) -> None:
        self._original = original
        self._children = children
        self._path = path
        self._processes = processes
        self._links = actor.mailbox.links
        self._to_notify: set[Service] = set()
        actor.on_reload(lambda: reload(Service.SUPERVISOR, self._original, self._write_policies))

    def started(self, service: Service) -> None:
        """A new process was started: it reads the current file, so it needs no signal."""
        self._to_notify.discard(service)

    def adopted(self, service: Service) -> None:
        """A process was adopted: it read an older file, so it needs a signal."""
        self._to_notify.add(service)

    def advance(self) -> None:
        """Send SIGHUP to services that need it and have joined; before that they may not handle the signal."""
        for service in list(self._to_notify):
            process, link = self._processes.by_service.get(service), self._links[service]
            if process is None:
                self._to_notify.discard(service)
            elif link.joined and link.pid == process.pid:
                self._to_notify.discard(service)
                process.send(signal.SIGHUP)

    def _write_policies(self, config: Config) -> None:
        self._children = msgspec.structs.replace(self._children, classes=config.classes, tenants=config.tenants)
        write(self._children, self._path)
        self._to_notify = set(self._processes.by_service)
