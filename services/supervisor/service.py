"""The supervisor's shell: spawns and signals children as the core says, and tells it what they say and how they end."""

import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, assert_never

import msgspec

from noria.proto.base import Header, Service
from noria.proto.lifecycle import Drain, State
from noria.services.supervisor import startup_report
from noria.services.supervisor.child_processes import Processes
from noria.services.supervisor.config import SupervisorConfig
from noria.services.supervisor.core import events, stack
from noria.services.supervisor.core.stack_phase import EXIT_FAILED, EXIT_USER_ERROR, START_ORDER, Course
from noria.services.supervisor.metrics import StackMetrics
from noria.services.supervisor.policy_reload import Rereading
from noria.shared.actor.actor import Actor
from noria.shared.actor.endpoints import split_address
from noria.shared.config.config import Config
from noria.shared.errors import UserError
from noria.shared.process.listener import INHERITED, asked_for, listen
from noria.shared.process.locks import living_holder
from noria.shared.telemetry.log import logger
from noria.shared.telemetry.telemetry import Telemetry

_LOG: Final = logger(Service.SUPERVISOR.value)


class Supervisor:
    """Runs the services of one runtime folder until a signal, or a service that cannot be kept alive, ends them all.

    command: what runs a service's module with the configuration file. listener: the door that gateways serve at.
    """

    def __init__(
        self,
        config: SupervisorConfig,
        config_path: Path,
        actor: Actor,
        command: Callable[[str, Path], list[str]],
        original: Config,
        telemetry: Telemetry,
        listener: socket.socket | None = None,
    ) -> None:
        self._listener = listener
        self._config = config
        self._actor = actor
        self._stack = stack.Stack(config.limits)
        self._processes = Processes(config.folder, config_path, command, self._watch, actor.unwatch)
        self._heard: dict[Service, int] = {}
        self._stops_asked = 0
        self._on_terminal = sys.stderr.isatty()
        self._rereading = Rereading(original, config.children, config_path, self._processes, actor)
        self._started_ns = time.monotonic_ns()
        self._metrics = StackMetrics(self._ready)
        telemetry.add(self._metrics)
        self.outcome = events.Over(EXIT_FAILED, "the supervisor stopped by itself")

    def listen_to_signals(self) -> None:
        """Turn SIGINT and SIGTERM into one orderly stop, and a child's end into a turn of the loop."""
        signal.signal(signal.SIGCHLD, lambda *_: self._actor.wake())
        signal.signal(signal.SIGINT, lambda *_: self.ask_to_stop())
        signal.signal(signal.SIGTERM, lambda *_: self.ask_to_stop())
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup has its way
            signal.signal(signal.SIGHUP, lambda *_: self._hang_up())

    def ask_to_stop(self) -> None:
        """Stop in order; asked again, at once. May be called from signal handlers."""
        self._stops_asked += 1
        self._actor.wake()

    def receive(self, sender: Service, header: Header, body: msgspec.Struct) -> None:
        """Nothing: children say what they have to say in greetings and heartbeats."""

    def joined(self, peer: Service) -> None:
        """Nothing to tell."""

    def lost(self, peer: Service) -> None:
        """A child lives but has been silent: the core counts for itself how long."""
        _LOG.warning("service is silent", peer=peer.value, pid=self._stack.children[peer].pid)

    def congested(self, peer: Service) -> None:
        """Never: nothing is sent but heartbeats."""

    def advance(self, now_ns: int) -> int | None:
        """Tell the core what has happened since the last turn, and do what it says."""
        if self._stack.course is Course.IDLE:
            self._begin(now_ns)
        while self._stops_asked:
            self._stops_asked -= 1
            _LOG.info("stopping", again=self._stack.course >= Course.DRAINING)
            self._apply(events.StopAsked(now_ns))
        self._collect(now_ns)
        self._hear(now_ns)
        self._rereading.advance()
        self._apply(events.Ticked(now_ns))
        return self._stack.wanted_ns()

    def state(self) -> State:
        """READY from the moment when all children were for the first time."""
        match self._stack.course:
            case Course.IDLE | Course.STARTING:
                return State.STARTING
            case Course.SERVING:
                return State.READY
            case Course.DRAINING | Course.STOPPING:
                return State.DRAINING
            case Course.OVER:
                return State.STOPPED
            case _ as never:
                assert_never(never)

    def progress(self) -> tuple[int, bool]:
        """The supervisor's own work does not advance."""
        return 0, False

    def snapshot(self) -> dict[str, Any]:
        """Every child with pid, incarnation, state and uptime."""
        now_ns = time.monotonic_ns()
        links = self._actor.mailbox.links
        return {
            "folder": str(self._config.folder),
            "http": self._config.http,
            "uptime_s": round((now_ns - self._started_ns) / 1e9, 1),
            "services": {
                service.value: {
                    "pid": child.pid,
                    "incarnation": f"{links[service].incarnation:x}" if links[service].joined else "",
                    "state": links[service].state.value if links[service].joined else child.phase.value,
                    "phase": child.phase.value,
                    "uptime_s": round((now_ns - child.spawned_ns) / 1e9, 1) if child.alive else 0.0,
                    "lives": child.lives,
                    "deaths_in_a_row": child.deaths,
                }
                for service, child in self._stack.children.items()
            },
        }

    def drain(self, timeout_ms: int) -> None:
        """Nobody drains the supervisor."""

    def close(self) -> None:
        """Let go of the processes; when the stack is over there is none but those that were to finish what they had begun."""
        if self._stack.course is Course.OVER:
            self._processes.kill_all()
        self._processes.close()
        if self._listener is not None:
            self._listener.close()

    def _begin(self, now_ns: int) -> None:
        for service in START_ORDER:
            self._adopt(service, now_ns)
        self._apply(events.Begun(now_ns))

    def _adopt(self, service: Service, now_ns: int) -> bool:
        pid = self._processes.adopt(service)
        if pid is None:
            return False
        _LOG.info("service adopted", child=service.value, pid=pid)
        self._heard.pop(service, None)
        self._rereading.adopted(service)
        self._apply(events.Adopted(service, pid, now_ns))
        if service is Service.GATEWAY and self._listener is None:
            self._listener = asked_for(self._config.folder)
        return True

    def _apply(self, event: events.Event) -> None:
        for reply in self._stack.apply(event):
            match reply:
                case events.Spawn():
                    self._spawn(reply.service)
                case events.Terminate():
                    self._processes.of[reply.service].send(signal.SIGTERM)
                case events.Kill():
                    _LOG.warning("killing service", child=reply.service.value, why=reply.why)
                    self._processes.of[reply.service].send(signal.SIGKILL)
                case events.Relieve():
                    _LOG.info("service relieved", child=reply.service.value, pid=self._processes.of[reply.service].pid)
                    self._processes.relieve(reply.service)
                case events.Quiesce():
                    self._quiesce(reply.timeout_ms)
                case events.Served():
                    startup_report.ready(self._config, self._pids(), reply.start_ms)
                case events.Over():
                    self.outcome = reply
                    self._actor.stop()
                case _ as never:
                    assert_never(never)

    def _spawn(self, service: Service) -> None:
        pid = self._processes.spawn(service, *self._door_of(service))
        self._heard.pop(service, None)
        self._rereading.started(service)
        self._metrics.started(service)
        _LOG.info("service spawned", child=service.value, pid=pid)
        self._apply(events.Spawned(service, pid, time.monotonic_ns()))

    def _door_of(self, service: Service) -> tuple[dict[str, str], tuple[int, ...]]:
        """The gateway gets the socket that this supervisor keeps open for it and its successors."""
        if service is not Service.GATEWAY:
            return {}, ()
        if self._listener is None:
            # It was in the hands of a gateway that was taken over and did not give it, and is free now.
            with contextlib.suppress(UserError):
                self._listener = listen(*split_address(self._config.http))
        if self._listener is None:
            return {}, ()  # it will say what is wrong
        return {INHERITED: str(self._listener.fileno())}, (self._listener.fileno(),)

    def _quiesce(self, timeout_ms: int) -> None:
        _LOG.info("draining", timeout_s=timeout_ms / 1000)
        # The others have nothing of their own to finish: they go on until admission has nothing for them any more.
        for service in (Service.GATEWAY, Service.ADMISSION):
            self._actor.send(self, service, Drain(timeout_ms))

    def _collect(self, now_ns: int) -> None:
        for ending in self._processes.collect():
            service = ending.service
            _LOG.info("service ended", child=service.value, pid=ending.pid, status=ending.status)
            # A twin of a service whose supervisor died before it had taken its lock finds its place taken.
            taken = ending.status == EXIT_USER_ERROR and self._stack.course < Course.STOPPING
            if taken and self._adopt(service, now_ns):
                continue
            self._apply(events.Exited(service, ending.status, now_ns, ending.words))

    def _hear(self, now_ns: int) -> None:
        for service, link in self._actor.mailbox.links.items():
            process = self._processes.of.get(service)
            # The pid tells our child from a stranger that bound its endpoint.
            if process is None or not link.joined or link.pid != process.pid:
                continue
            if self._heard.get(service) != link.last_heard_ns:
                self._heard[service] = link.last_heard_ns
                self._apply(events.Heard(service, link.state, link.progress, link.busy, link.expected_us, now_ns))
        for service, process in self._processes.of.items():
            # One that has taken its lock has only to open its mailbox: from then on its silence counts.
            if self._stack.children[service].heard_ns is None and self._holds_its_lock(service, process.pid):
                self._apply(events.Heard(service, State.STARTING, 0, busy=True, expected_us=0, now_ns=now_ns))

    def _holds_its_lock(self, service: Service, pid: int) -> bool:
        holder = living_holder(self._config.folder, service.value)
        return holder is not None and holder.pid == pid

    def _watch(self, descriptor: int) -> None:
        # Its end is seen by `collect` in the turn that this begins.
        self._actor.watch(descriptor, lambda: None)

    def _ready(self) -> dict[Service, bool]:
        links = self._actor.mailbox.links
        return {each: links[each].joined and links[each].state is State.READY for each in self._stack.children}

    def _pids(self) -> dict[Service, int]:
        return {Service.SUPERVISOR: os.getpid()} | {
            service: child.pid for service, child in self._stack.children.items()
        }

    def _hang_up(self) -> None:
        if not self._on_terminal or sys.stderr.isatty():
            self._actor.hang_up()
            return
        # The terminal is gone: what is written to it from now on would fail.
        with contextlib.suppress(OSError), open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
        self.ask_to_stop()
