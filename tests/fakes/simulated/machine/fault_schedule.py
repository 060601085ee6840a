"""Schedules faults from outside, drawn from the run's seed: deaths, stops, drains, pauses, policy changes, full disks."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Final

from fakes.simulated.machine.clock import MILLISECOND, EventQueue, SimulatedClock
from fakes.simulated.machine.fault_rates import FaultRates
from fakes.simulated.machine.process import SimulatedProcess

from noria.proto.base import Service

FAULTS_END_NS: Final = 1_200 * MILLISECOND


class FaultSchedule:
    """The faults of one run, until `end_faults`. killable: services that may die. over: whether faults have ended."""

    def __init__(
        self,
        draw: Random,
        queue: EventQueue,
        clock: SimulatedClock,
        rates: FaultRates,
        processes: Mapping[Service, SimulatedProcess],
        killable: Sequence[Service],
        log: Callable[[str, str], None],
        counts: Counter[str],
    ) -> None:
        self.over = False
        self._random = draw
        self._queue = queue
        self._clock = clock
        self._rates = rates
        self._processes = processes
        self._killable = killable
        self._log = log
        self._counts = counts

    def start(
        self, change: Callable[[], None], begin_attempt: Callable[[], None], disk_full: Callable[[bool], None]
    ) -> None:
        """Draw the times of all faults.

        change: changes the policy. begin_attempt: restarts a stream. disk_full: sets whether the journal has no room.
        """
        self._queue.after(FAULTS_END_NS, self.end_faults)
        self._schedule_next_deaths()
        for _ in range(self._rates.pauses):
            self._queue.after(self._rates.between(0, FAULTS_END_NS), self._pause)
        for _ in range(self._rates.stops):
            self._queue.after(self._rates.between(0, FAULTS_END_NS), self._stop)
        for _ in range(self._rates.drains):
            self._queue.after(self._rates.between(0, FAULTS_END_NS), self._drain)
        for _ in range(self._rates.changes):
            self._queue.after(self._rates.between(0, FAULTS_END_NS), change)
        for _ in range(self._rates.full_disks):
            begin_ns = self._rates.between(0, FAULTS_END_NS)
            end_ns = min(begin_ns + self._rates.between(0, 500 * MILLISECOND), FAULTS_END_NS)
            self._queue.after(begin_ns, lambda: disk_full(True))
            self._queue.after(end_ns, lambda: disk_full(False))
        for _ in range(self._rates.new_attempts):
            self._queue.after(self._rates.between(100 * MILLISECOND, FAULTS_END_NS // 2), begin_attempt)

    def end_faults(self) -> None:
        """Turn off all faults for the rest of the run."""
        self.over = True
        self._rates.end_faults()
        for process in self._processes.values():
            process.sends_before_death = None
        self._log("faults", "are over")

    def _schedule_next_deaths(self) -> None:
        if self._rates.deaths <= 0:
            return
        self._rates.deaths -= 1
        self._queue.after(self._rates.between(0, 2 * self._rates.death_ns), self._kill_some)

    def _kill_some(self) -> None:
        if self.over:
            return
        count = self._random.choice([1, 1, 1, 2, 3, len(self._killable)])
        for service in self._random.sample(self._killable, min(count, len(self._killable))):
            process = self._processes[service]
            if not process.alive:
                continue
            if self._random.random() < 0.3:
                process.die()
            else:
                # In the middle of a turn: after one of its next messages.
                process.sends_before_death = self._random.randint(1, 12)
        self._schedule_next_deaths()

    def _stop(self) -> None:
        """Stop one process in order, as SIGTERM does; it is started again."""
        if self.over:
            return
        service = self._random.choice(list(self._killable))
        self._counts["stop"] += 1
        self._log(service.value, "is asked to end")
        self._processes[service].stop()

    def _drain(self) -> None:
        """Drain all processes for a while, then stop them in order; they are started again."""
        if self.over or Service.ADMISSION not in self._killable:
            return
        self._counts["drain"] += 1
        timeout_ns = self._rates.between(0, 300 * MILLISECOND)
        self._log("all", f"drain for {timeout_ns // MILLISECOND} ms")
        for process in self._processes.values():
            if process.alive:
                process.shell.drain(timeout_ns // MILLISECOND)
                process.wake()
        processes = list(self._processes.values())
        self._queue.after(timeout_ns, lambda: [process.stop() for process in processes])

    def _pause(self) -> None:
        if self.over:
            return
        process = self._processes[self._random.choice(list(self._processes))]
        length_ns = self._rates.between(10 * MILLISECOND, 1_500 * MILLISECOND)
        process.paused_until_ns = self._clock.now_ns + length_ns
        self._counts["pause"] += 1
        self._log(process.service.value, f"stands still for {length_ns // MILLISECOND} ms")
