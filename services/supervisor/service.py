"""The supervisor's shell: carries out the core's actions on processes, and reports heartbeats and exits to it."""

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
from noria.services.supervisor.child_processes import ChildProcesses
from noria.services.supervisor.config import SupervisorConfig
from noria.services.supervisor.core import events, stack
from noria.services.supervisor.core.stack_phase import EXIT_FAILED, EXIT_USER_ERROR, START_ORDER, StackPhase
from noria.services.supervisor.metrics import StackMetrics
from noria.services.supervisor.policy_reload import PolicyReload
from noria.shared.actor.actor import Actor
from noria.shared.actor.endpoints import split_address
from noria.shared.config.config import Config
from noria.shared.errors import UserError
from noria.shared.process.listener import INHERITED, listen, request_listener
from noria.shared.process.locks import living_holder
from noria.shared.telemetry.log import logger
from noria.shared.telemetry.telemetry import Telemetry

_LOG: Final = logger(Service.SUPERVISOR.value)


class Supervisor:
    """Runs the services of one runtime folder until a signal, or a service that cannot be kept alive, ends them all.

    command: makes the command line for a service's module and the configuration file. listener: the HTTP socket.
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
        self._processes = ChildProcesses(config.folder, config_path, command, self._watch, actor.unwatch)
        self._last_heartbeat_ns: dict[Service, int] = {}
        self._stop_requests = 0
        self._on_terminal = sys.stderr.isatty()
        self._policy_reload = PolicyReload(original, config.children, config_path, self._processes, actor)
        self._started_ns = time.monotonic_ns()
        self._metrics = StackMetrics(self._ready)
        telemetry.add(self._metrics)
        self.outcome = events.ExitSupervisor(EXIT_FAILED, "the supervisor stopped by itself")

    def listen_to_signals(self) -> None:
        """Install signal handlers: SIGINT and SIGTERM stop the stack, SIGCHLD wakes the loop, SIGHUP reloads policies."""
        signal.signal(signal.SIGCHLD, lambda *_: self._actor.wake())
        signal.signal(signal.SIGINT, lambda *_: self.ask_to_stop())
        signal.signal(signal.SIGTERM, lambda *_: self.ask_to_stop())
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup has its way
            signal.signal(signal.SIGHUP, lambda *_: self._on_sighup())

    def ask_to_stop(self) -> None:
        """Stop the stack in order; a second call stops it at once. Safe in signal handlers."""
        self._stop_requests += 1
        self._actor.wake()

    def receive(self, sender: Service, header: Header, body: msgspec.Struct) -> None:
        """Ignore messages: children report only by greetings and heartbeats, which the mailbox keeps."""

    def joined(self, peer: Service) -> None:
        """Do nothing: a child needs nothing from the supervisor when it joins."""

    def lost(self, peer: Service) -> None:
        """Log that a child has been silent; the core measures by itself how long."""
        _LOG.warning("service is silent", peer=peer.value, pid=self._stack.children[peer].pid)

    def congested(self, peer: Service) -> None:
        """Do nothing: only heartbeats are sent, and those may be lost."""

    def advance(self, now_ns: int) -> int | None:
        """Report to the core what has happened since the last turn, and carry out its actions; returns the next deadline."""
        if self._stack.phase is StackPhase.IDLE:
            self._start(now_ns)
        while self._stop_requests:
            self._stop_requests -= 1
            _LOG.info("stopping", again=self._stack.phase >= StackPhase.DRAINING)
            self._apply(events.StopRequested(now_ns))
        self._collect_exits(now_ns)
        self._read_heartbeats(now_ns)
        self._policy_reload.advance()
        self._apply(events.TimerTicked(now_ns))
        return self._stack.next_timer_ns()

    def state(self) -> State:
        """The state of the stack: READY once all children have been ready."""
        match self._stack.phase:
            case StackPhase.IDLE | StackPhase.STARTING:
                return State.STARTING
            case StackPhase.SERVING:
                return State.READY
            case StackPhase.DRAINING | StackPhase.STOPPING:
                return State.DRAINING
            case StackPhase.OVER:
                return State.STOPPED
            case _ as never:
                assert_never(never)

    def progress(self) -> tuple[int, bool]:
        """No progress and never busy: the supervisor has no work of its own."""
        return 0, False

    def snapshot(self) -> dict[str, Any]:
        """The supervisor's part of /debug/state: every child with pid, incarnation, state and uptime."""
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
                    "lives": child.starts,
                    "deaths_in_a_row": child.deaths,
                }
                for service, child in self._stack.children.items()
            },
        }

    def drain(self, timeout_ms: int) -> None:
        """Do nothing: nobody sends the supervisor a drain."""

    def close(self) -> None:
        """Release all processes and the HTTP socket; when the stack is over, kill retired processes that are left."""
        if self._stack.phase is StackPhase.OVER:
            self._processes.kill_all()
        self._processes.close()
        if self._listener is not None:
            self._listener.close()

    def _start(self, now_ns: int) -> None:
        for service in START_ORDER:
            self._adopt(service, now_ns)
        self._apply(events.StartRequested(now_ns))

    def _adopt(self, service: Service, now_ns: int) -> bool:
        pid = self._processes.adopt(service)
        if pid is None:
            return False
        _LOG.info("service adopted", child=service.value, pid=pid)
        self._last_heartbeat_ns.pop(service, None)
        self._policy_reload.adopted(service)
        self._apply(events.ChildAdopted(service, pid, now_ns))
        if service is Service.GATEWAY and self._listener is None:
            self._listener = request_listener(self._config.folder)
        return True

    def _apply(self, event: events.StackEvent) -> None:
        for action in self._stack.apply(event):
            match action:
                case events.SpawnChild():
                    self._spawn(action.service)
                case events.TerminateChild():
                    self._processes.by_service[action.service].send(signal.SIGTERM)
                case events.KillChild():
                    _LOG.warning("killing service", child=action.service.value, why=action.why)
                    self._processes.by_service[action.service].send(signal.SIGKILL)
                case events.RetireChild():
                    _LOG.info(
                        "service relieved",
                        child=action.service.value,
                        pid=self._processes.by_service[action.service].pid,
                    )
                    self._processes.retire(action.service)
                case events.DrainIntake():
                    self._drain_intake(action.timeout_ms)
                case events.AnnounceReady():
                    startup_report.print_ready(self._config, self._pids(), action.start_ms)
                case events.ExitSupervisor():
                    self.outcome = action
                    self._actor.stop()
                case _ as never:
                    assert_never(never)

    def _spawn(self, service: Service) -> None:
        pid = self._processes.spawn(service, *self._http_socket_for(service))
        self._last_heartbeat_ns.pop(service, None)
        self._policy_reload.started(service)
        self._metrics.started(service)
        _LOG.info("service spawned", child=service.value, pid=pid)
        self._apply(events.ChildSpawned(service, pid, time.monotonic_ns()))

    def _http_socket_for(self, service: Service) -> tuple[dict[str, str], tuple[int, ...]]:
        """The environment variables and descriptors that hand the gateway its HTTP socket; empty for other services."""
        if service is not Service.GATEWAY:
            return {}, ()
        if self._listener is None:
            # An adopted gateway held it and did not hand it over; it may be free now.
            with contextlib.suppress(UserError):
                self._listener = listen(*split_address(self._config.http))
        if self._listener is None:
            return {}, ()  # the gateway reports what is wrong
        return {INHERITED: str(self._listener.fileno())}, (self._listener.fileno(),)

    def _drain_intake(self, timeout_ms: int) -> None:
        _LOG.info("draining", timeout_s=timeout_ms / 1000)
        # The other services go on until admission has no more work for them.
        for service in (Service.GATEWAY, Service.ADMISSION):
            self._actor.send(self, service, Drain(timeout_ms))

    def _collect_exits(self, now_ns: int) -> None:
        for exited in self._processes.collect():
            service = exited.service
            _LOG.info("service ended", child=service.value, pid=exited.pid, status=exited.status)
            # When a supervisor died before its service had taken the lock, our own start of that service finds it taken.
            taken = exited.status == EXIT_USER_ERROR and self._stack.phase < StackPhase.STOPPING
            if taken and self._adopt(service, now_ns):
                continue
            self._apply(events.ChildExited(service, exited.status, now_ns, exited.last_output))

    def _read_heartbeats(self, now_ns: int) -> None:
        for service, link in self._actor.mailbox.links.items():
            process = self._processes.by_service.get(service)
            # The pid tells our child from a stranger that bound its endpoint.
            if process is None or not link.joined or link.pid != process.pid:
                continue
            if self._last_heartbeat_ns.get(service) != link.last_heard_ns:
                self._last_heartbeat_ns[service] = link.last_heard_ns
                leaving_ns = link.leaving_ms * 1_000_000
                told = (link.state, link.progress, link.busy, link.expected_us, now_ns, leaving_ns)
                self._apply(events.HeartbeatReceived(service, *told))
        for service, process in self._processes.by_service.items():
            # One that has taken its lock has only to open its mailbox: from then on its silence counts.
            if self._stack.children[service].last_heartbeat_ns is None and self._holds_its_lock(service, process.pid):
                self._apply(
                    events.HeartbeatReceived(service, State.STARTING, 0, busy=True, expected_us=0, now_ns=now_ns)
                )

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

    def _on_sighup(self) -> None:
        if not self._on_terminal or sys.stderr.isatty():
            self._actor.request_reload()
            return
        # The terminal is gone: what is written to it from now on would fail.
        with contextlib.suppress(OSError), open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
        self.ask_to_stop()
