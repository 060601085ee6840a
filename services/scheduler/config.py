"""What the scheduler takes from the configuration."""

from collections.abc import Callable
from pathlib import Path

from noria.services.scheduler.core.interface.settings import CoreSettings
from noria.services.scheduler.core.interface.traffic_rules import FairRules, ServicePrices, TrafficClass
from noria.services.scheduler.core.state.scheduler_view import SchedulerView
from noria.services.scheduler.observe.event_log import EventLog
from noria.shared.config.config import BATCH_TOKENS, Config
from noria.shared.config.tenants import ClassSettings


def rules_of(config: Config) -> FairRules:
    """Classes, tenants' weights and prices: the part that is read again at SIGHUP."""
    chosen = config.scheduler
    return FairRules(
        classes=tuple(
            TrafficClass(
                name=name,
                rank=each.rank,
                weight=each.weight,
                reserved_slots=each.reserved_slots,
                reserved_cache=each.reserved_cache,
                preemptible=each.preemptible,
                isolated=each.isolated,
                request_tokens=_request_tokens(each),
                quantum_tokens=each.quantum_tokens,
                itl_target_ms=each.itl_target_ms,
                queue_requests_max=each.queue_requests_max,
                queue_tokens_max=each.queue_tokens_max,
            )
            for name, each in config.classes.items()
        ),
        tenants={name: each.weight for name, each in config.tenants.items()},
        prices=ServicePrices(chosen.prompt_price, chosen.cached_price, chosen.output_price),
        progress_tokens=chosen.progress_tokens,
    )


def _request_tokens(settings: ClassSettings) -> int | None:
    """The most that one request of a class may have."""
    if settings.prompt_tokens_max is None or settings.output_tokens_max is None:
        return None
    return settings.prompt_tokens_max + settings.output_tokens_max


def event_log_of(config: Config) -> Callable[[SchedulerView], EventLog] | None:
    """A function that begins the event log; None where none is configured."""
    chosen = config.scheduler
    if not chosen.event_log:
        return None
    path, settings = Path(chosen.event_log).expanduser(), scheduler_settings(config)
    return lambda view: EventLog(path, chosen.event_log_bytes_max, settings, config.cache.page_size, view)


def scheduler_settings(config: Config) -> CoreSettings:
    """The core's settings; every value was checked when the configuration was read."""
    chosen = config.scheduler
    return CoreSettings(
        policy=config.policy,
        rules=rules_of(config),
        max_batch_tokens=chosen.max_batch_tokens or BATCH_TOKENS,
        prefill_tokens=chosen.prefill_chunk_tokens or chosen.max_batch_tokens,
        max_requests_per_batch=chosen.max_requests_per_batch,
        max_cache_tokens=chosen.max_cache_tokens,
        steps_in_flight=chosen.steps_in_flight,
        safety_margin=chosen.safety_margin,
        queue_requests_max=chosen.queue_requests_max,
        queue_tokens_max=chosen.queue_tokens_max,
        allow_block_sharing=config.cache.allow_block_sharing,
    )
