"""Simulates a stack whose services send each other wrong numbers for a while; then all processes restart.

Answers may be wrong. A process that receives something impossible may die of an exception, but none may hang, and from the
journal and with correct messages every request must come to an end.
"""

import random
import traceback
from collections import Counter
from typing import Final

import structlog
from fakes.simulated.faults.wrong_messages import MessageCorrupter
from fakes.simulated.machine import services
from fakes.simulated.machine.clock import MILLISECOND, simulated_time
from fakes.simulated.machine.executor import SimulatedExecutor
from fakes.simulated.machine.fault_schedule import FAULTS_END_NS
from fakes.simulated.machine.process import SimulatedProcess
from fakes.simulated.simulation import StackSimulation, drop

from noria.proto.base import Service
from noria.services.admission.core.state.events import RequestLogEntry

_UNCLEAN: Final = (MemoryError, RecursionError)


class WrongMessageSimulation(StackSimulation):
    """One simulated run with wrong messages.

    rate: share of messages between services in which something is changed. deaths: exceptions that processes died of.
    """

    def __init__(self, seed: int, rate: float = 0.01) -> None:
        super().__init__(seed, only=Service.ADMISSION)
        self.rates.deaths = 0
        self.scenario.journal = True
        self.corrupter = MessageCorrupter(seed, rate)
        self.network.alter = self.corrupter.alter
        self.deaths: Counter[str] = Counter()
        self._messages_are_correct = False

    def run(self) -> None:
        """Run until every request has ended and nothing is left of it. Raises AssertionError when that does not happen."""
        structlog.configure(processors=[drop])
        with simulated_time(self.clock, random.Random(self.seed + 1)):
            for service in services.PEERS:
                self._start(service)
            self._create_clients()
            self.queue.after(FAULTS_END_NS, self._end_wrong_messages)
            self._until(
                lambda: self._messages_are_correct and self.population.finished,
                "not all came to an end",
            )
            self._until(lambda: not any(self.state().values()), "something is left")

    def _end_wrong_messages(self) -> None:
        """Send only correct messages from now on, and restart every process from what the journal has."""
        self.corrupter.rate = 0.0
        for process in list(self.processes.values()):
            process.die()
        self._messages_are_correct = True

    def _create_clients(self) -> None:
        super()._create_clients()
        for client in self.clients:
            client.expects_correct_answers = False

    def _watch(self, process: SimulatedProcess, *, again: bool) -> None:
        process.on_error = self._dies_of

    def _executor(self, process: SimulatedProcess) -> SimulatedExecutor:
        shell = super()._executor(process)
        shell.allow_wrong_plans()
        return shell

    def _dies_of(self, process: SimulatedProcess, error: Exception) -> bool:
        if isinstance(error, _UNCLEAN):
            return False
        frame = traceback.extract_tb(error.__traceback__)[-1]
        self.deaths[f"{process.service.value}: {type(error).__name__} in {frame.name}"] += 1
        return True

    def _turned(self, process: SimulatedProcess) -> None:
        self.counts["turns"] += 1

    def _note(self, note: RequestLogEntry) -> None:
        """Ignore what admission reports: it need not be right here."""

    def _poisoned(self, process: SimulatedProcess) -> None:
        self.queue.after(MILLISECOND, process.die)
