"""Changes to running processes: other shares and limits, a stream that restarts, a full disk."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping
from random import Random
from typing import Final

from fakes.simulated.machine.clock import MILLISECOND, EventQueue
from fakes.simulated.machine.fault_schedule import FaultSchedule
from fakes.simulated.machine.observers import admission_state_of, restart_stream
from fakes.simulated.machine.process import SimulatedProcess
from fakes.simulated.machine.services import SimulatedDatabase
from fakes.simulated.scenario.scenario import Scenario
from fakes.simulated.scenario.tenancy import draw_servable_rules

from noria.proto.base import Service
from noria.services.admission.service import AdmissionService
from noria.services.scheduler.service import SchedulerService

_LOOK_AGAIN_NS: Final = 20 * MILLISECOND


class LiveChanges:
    """Makes the changes that a fault schedule asks for."""

    def __init__(
        self,
        draw: Random,
        scenario: Scenario,
        queue: EventQueue,
        processes: Mapping[Service, SimulatedProcess],
        database: SimulatedDatabase,
        schedule: FaultSchedule,
        log: Callable[[str, str], None],
        counts: Counter[str],
    ) -> None:
        self._random = draw
        self._scenario = scenario
        self._queue = queue
        self._processes = processes
        self._database = database
        self._schedule = schedule
        self._log = log
        self._counts = counts

    def change_policy(self) -> None:
        """Change shares and limits; a class that is gone from the scheduler's rules counts as standard there."""
        if self._schedule.over:
            return
        self._counts["policy changed"] += 1
        scenario = self._scenario
        if scenario.settings.policy == "fair":
            scenario.settings = dataclasses.replace(scenario.settings, rules=draw_servable_rules(self._random))
        scheduler, admission = self._processes[Service.SCHEDULER], self._processes[Service.ADMISSION]
        if scheduler.alive and isinstance(scheduler.shell, SchedulerService):
            scheduler.shell.change_policy(scenario.settings)
            scheduler.wake()
        if admission.alive and isinstance(admission.shell, AdmissionService):
            admission.shell.change_policy(scenario.tenancy.policy)
            admission.wake()

    def fill_disk(self, full: bool) -> None:
        """Set whether the journal's disk is full."""
        self._counts["disk full"] += full
        self._log("disk", "is full" if full else "has room")
        self._database.full = full

    def restart_stream(self) -> None:
        """Restart a stream with a new attempt: its tokens are void, though the new ones will be the same."""
        process = self._processes[Service.ADMISSION]
        streams = [pair for pair in admission_state_of(process).unfinished() if pair[1].ids] if process.alive else []
        if self._schedule.over:
            return
        if not streams:
            self._queue.after(_LOOK_AGAIN_NS, self.restart_stream)
            return
        self._counts["new attempt"] += 1
        request, choice = self._random.choice(streams)
        self._log("ledger", f"begins {choice.stream} again")
        restart_stream(admission_state_of(process), request, choice)
        process.wake()
