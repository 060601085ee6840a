"""What is done to processes that live: other shares and limits, a stream that begins again, a disk that fills up."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping
from random import Random
from typing import Final

from fakes.simulated.clock import MILLISECOND, Agenda
from fakes.simulated.fate import Fate
from fakes.simulated.life import Life
from fakes.simulated.scene import Scene
from fakes.simulated.stack import SimulatedDatabase
from fakes.simulated.taps import admission_state_of, begin_again
from fakes.simulated.traffic import draw_servable_rules

from noria.proto.base import Service
from noria.services.admission.service import AdmissionService
from noria.services.scheduler.service import SchedulerService

_LOOK_AGAIN_NS: Final = 20 * MILLISECOND


class Upheaval:
    """Does to the processes of one run what fate asks for."""

    def __init__(
        self,
        draw: Random,
        scene: Scene,
        agenda: Agenda,
        lives: Mapping[Service, Life],
        database: SimulatedDatabase,
        fate: Fate,
        tell: Callable[[str, str], None],
        counts: Counter[str],
    ) -> None:
        self._random = draw
        self._scene = scene
        self._agenda = agenda
        self._lives = lives
        self._database = database
        self._fate = fate
        self._tell = tell
        self._counts = counts

    def change_policy(self) -> None:
        """Other shares and limits from now on; classes stay, and who is gone from the scheduler's is standard there."""
        if self._fate.still:
            return
        self._counts["policy changed"] += 1
        scene = self._scene
        if scene.settings.policy == "fair":
            scene.settings = dataclasses.replace(scene.settings, rules=draw_servable_rules(self._random))
        scheduler, admission = self._lives[Service.SCHEDULER], self._lives[Service.ADMISSION]
        if scheduler.alive and isinstance(scheduler.shell, SchedulerService):
            scheduler.shell.change_policy(scene.settings)
            scheduler.wake()
        if admission.alive and isinstance(admission.shell, AdmissionService):
            admission.shell.change_policy(scene.traffic.policy)
            admission.wake()

    def fill_disk(self, full: bool) -> None:
        """The journal has no room, or has room again."""
        self._counts["disk full"] += full
        self._tell("disk", "is full" if full else "has room")
        self._database.full = full

    def begin_again(self) -> None:
        """A stream begins a new attempt: what was emitted of it is void, though it will be the same again."""
        life = self._lives[Service.ADMISSION]
        streams = [pair for pair in admission_state_of(life).unfinished() if pair[1].ids] if life.alive else []
        if self._fate.still:
            return
        if not streams:
            self._agenda.after(_LOOK_AGAIN_NS, self.begin_again)
            return
        self._counts["new attempt"] += 1
        request, choice = self._random.choice(streams)
        self._tell("ledger", f"begins {choice.stream} again")
        begin_again(admission_state_of(life), request, choice)
        life.wake()
