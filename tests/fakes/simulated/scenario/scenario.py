"""What a seed decides before a run starts: rates of faults, classes and tenants, settings and the cache."""

from dataclasses import dataclass
from random import Random
from typing import Final

from fakes.simulated.machine import services
from fakes.simulated.machine.clock import MILLISECOND
from fakes.simulated.machine.fault_rates import FaultRates
from fakes.simulated.scenario.scheduler_setup import draw_geometry, draw_settings
from fakes.simulated.scenario.tenancy import Tenancy, draw_tenancy

from noria.proto.base import Service
from noria.proto.execution import Geometry
from noria.services.scheduler.core.interface.settings import CoreSettings
from noria.shared.config.config import RuntimeSettings

_JOURNALS: Final = 0.8
# For how long a scheduler collects tokens before it sends them; steps take up to 6 ms.
_TOKENS_INTERVALS_NS: Final = (0, 5 * MILLISECOND, 30 * MILLISECOND)
_KILLABLE: Final = (Service.SCHEDULER, Service.EXECUTOR, Service.DETOKENIZER)


@dataclass(slots=True, eq=False)
class Scenario:
    """The drawn inputs of one run. settings: the scheduler's, which may change in a run. journal: whether admission keeps one."""

    rates: FaultRates
    tenancy: Tenancy
    settings: CoreSettings
    tokens_interval_ns: int
    journal: bool
    geometry: Geometry

    @property
    def killable(self) -> tuple[Service, ...]:
        """Services that may die: admission only with a journal."""
        # What is sent while the disk is full is not in the journal, so that a restarted admission could not go on from there.
        return tuple(services.PEERS) if self.journal and not self.rates.full_disks else _KILLABLE

    @property
    def runtime(self) -> RuntimeSettings:
        """The runtime settings of all processes."""
        return RuntimeSettings(
            heartbeat_s=0.15,
            peer_timeout_s=0.7,
            high_water_mark=self.rates.high_water_mark,
            outbox_messages_max=self.rates.outbox_messages_max,
        )


def draw_scenario(draw: Random, seed: int, only: Service | None, poison_only: tuple[Service, ...]) -> Scenario:
    """Draw the inputs of a run; `only` and `poison_only` are those of StackSimulation."""
    rates = FaultRates.of(draw)
    if only is not None:
        rates.keep_only_deaths(deaths=4)
    if poison_only:
        rates.keep_only_poison()
    ample = only is not None or bool(poison_only)
    shared = draw.random() < 0.4 and not ample
    tenancy = draw_tenancy(draw) if shared else Tenancy()
    settings = draw_settings(draw, rates, tenancy.rules if shared else None)
    interval_ns = _TOKENS_INTERVALS_NS[seed % len(_TOKENS_INTERVALS_NS)]
    journal = draw.random() < _JOURNALS or Service.ADMISSION in poison_only
    geometry = draw_geometry(draw, settings.max_batch_tokens, ample=ample)
    return Scenario(rates, tenancy, settings, interval_ns, journal, geometry)
