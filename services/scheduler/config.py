"""What the scheduler takes from the configuration."""

from noria.services.scheduler.core.settings import Settings
from noria.shared.config import BATCH_TOKENS, Config


def scheduler_settings(config: Config) -> Settings:
    """The core's settings; every value was checked when the configuration was read."""
    chosen = config.scheduler
    return Settings(
        policy=chosen.policy,
        max_batch_tokens=chosen.max_batch_tokens or BATCH_TOKENS,
        prefill_tokens=chosen.prefill_chunk_tokens or chosen.max_batch_tokens,
        max_requests_per_batch=chosen.max_requests_per_batch,
        max_cache_tokens=chosen.max_cache_tokens,
        steps_in_flight=chosen.steps_in_flight,
        safety_margin=chosen.safety_margin,
        queue_requests_max=chosen.queue_requests_max,
        queue_tokens_max=chosen.queue_tokens_max,
        stop_lookahead=chosen.stop_lookahead,
        allow_block_sharing=config.cache.allow_block_sharing,
    )
