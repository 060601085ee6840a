"""Classes and tenants that are read again: by the supervisor from the user's file, by the services from theirs."""

import signal
from pathlib import Path

import msgspec

from noria.proto.base import Service
from noria.services.supervisor.child_processes import Processes
from noria.shared.actor.actor import Actor
from noria.shared.config.config import Config
from noria.shared.config.sources import write
from noria.shared.process.service_process import reload


class Rereading:
    """Writes the services' file anew at a hang-up, and tells each of them once it listens.

    original: the configuration as the user gave it. children: as the services read it, at `path`.
    """

    def __init__(self, original: Config, children: Config, path: Path, processes: Processes, actor: Actor) -> None:
        self._original = original
        self._children = children
        self._path = path
        self._processes = processes
        self._links = actor.mailbox.links
        self._untold: set[Service] = set()
        actor.on_hang_up(lambda: reload(Service.SUPERVISOR, self._original, self._take))

    def started(self, service: Service) -> None:
        """A service's new process reads the file as it is."""
        self._untold.discard(service)

    def adopted(self, service: Service) -> None:
        """A service's process runs by a file that was written before this supervisor's."""
        self._untold.add(service)

    def advance(self) -> None:
        """Have services read their file again; one that has not greeted yet may not listen to signals."""
        for service in list(self._untold):
            process, link = self._processes.of.get(service), self._links[service]
            if process is None:
                self._untold.discard(service)
            elif link.joined and link.pid == process.pid:
                self._untold.discard(service)
                process.send(signal.SIGHUP)

    def _take(self, config: Config) -> None:
        self._children = msgspec.structs.replace(self._children, classes=config.classes, tenants=config.tenants)
        write(self._children, self._path)
        self._untold = set(self._processes.of)
