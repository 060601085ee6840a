"""What a seed decides before anything happens: how likely what is, who asks, and the machine."""

from dataclasses import dataclass
from random import Random
from typing import Final

from fakes.simulated import stack
from fakes.simulated.chance import Chance
from fakes.simulated.clock import MILLISECOND
from fakes.simulated.drawing import draw_geometry, draw_settings
from fakes.simulated.traffic import Traffic, draw_traffic

from noria.proto.base import Service
from noria.proto.execution import Geometry
from noria.services.scheduler.core.interface.settings import CoreSettings
from noria.shared.config.config import RuntimeSettings

_JOURNALS: Final = 0.8
# For how long a scheduler tells tokens together; steps take up to 6 ms.
_TOKENS_INTERVALS_NS: Final = (0, 5 * MILLISECOND, 30 * MILLISECOND)
_MORTAL: Final = (Service.SCHEDULER, Service.EXECUTOR, Service.DETOKENIZER)


@dataclass(slots=True, eq=False)
class Scene:
    """settings: the scheduler's, which may change in a run. journal: whether admission keeps one to come back from."""

    chance: Chance
    traffic: Traffic
    settings: CoreSettings
    tokens_interval_ns: int
    journal: bool
    geometry: Geometry

    @property
    def mortal(self) -> tuple[Service, ...]:
        """Who may die: admission only with a journal."""
        # What is told while the disk is full is not on record, so that nobody could go on from there.
        return tuple(stack.PEERS) if self.journal and not self.chance.full_disks else _MORTAL

    @property
    def runtime(self) -> RuntimeSettings:
        """What the actors of all processes are told."""
        return RuntimeSettings(
            heartbeat_s=0.15,
            peer_timeout_s=0.7,
            high_water_mark=self.chance.high_water_mark,
            outbox_messages_max=self.chance.outbox_messages_max,
        )


def draw_scene(draw: Random, seed: int, only: Service | None, plague: tuple[Service, ...]) -> Scene:
    """For a run as `Universe` is asked for."""
    chance = Chance.of(draw)
    if only is not None:
        chance.calm(deaths=4)
    if plague:
        chance.infect()
    ample = only is not None or bool(plague)
    shared = draw.random() < 0.4 and not ample
    traffic = draw_traffic(draw) if shared else Traffic()
    settings = draw_settings(draw, chance, traffic.rules if shared else None)
    interval_ns = _TOKENS_INTERVALS_NS[seed % len(_TOKENS_INTERVALS_NS)]
    journal = draw.random() < _JOURNALS or Service.ADMISSION in plague
    geometry = draw_geometry(draw, settings.max_batch_tokens, ample=ample)
    return Scene(chance, traffic, settings, interval_ns, journal, geometry)
