"""What the core is told of the configuration."""

from noria.services.scheduler.config import scheduler_settings
from noria.shared.config import CacheSettings, Config, SchedulerSettings


def test_limits_and_sharing_come_from_the_configuration() -> None:
    chosen = Config(
        scheduler=SchedulerSettings(policy="prefill_first", max_batch_tokens=77, safety_margin=0.2),
        cache=CacheSettings(allow_block_sharing=False),
    )
    settings = scheduler_settings(chosen)
    assert (settings.policy, settings.max_batch_tokens, settings.safety_margin) == ("prefill_first", 77, 0.2)
    assert not settings.allow_block_sharing
    assert scheduler_settings(Config()).allow_block_sharing


def test_an_explicit_budget_leaves_no_room_for_advice() -> None:
    unset, budget, chunk = (
        scheduler_settings(Config(scheduler=each)).prefill_tokens
        for each in (
            SchedulerSettings(),
            SchedulerSettings(max_batch_tokens=77),
            SchedulerSettings(max_batch_tokens=77, prefill_chunk_tokens=7),
        )
    )
    assert (unset, budget, chunk) == (None, 77, 7)
