"""What the core is told of the configuration."""

from noria.services.scheduler.config import scheduler_settings
from noria.shared.config import CacheSettings, Config, SchedulerSettings
from noria.shared.traffic import TenantSettings


def test_classes_tenants_and_prices_become_rules() -> None:
    config = Config(
        scheduler=SchedulerSettings(output_price=3.0, progress_tokens=5),
        tenants={"shop": TenantSettings(weight=2.0)},
    )
    rules = scheduler_settings(config).rules
    assert scheduler_settings(config).policy == "fair"
    assert (rules.tenants, rules.prices.output, rules.progress_tokens) == ({"shop": 2.0}, 3.0, 5)
    interactive, admin = rules.class_named("interactive"), rules.class_named("admin")
    assert (interactive.rank, interactive.reserved_slots, interactive.preemptible) == (2, 4, False)
    assert admin.isolated and admin.rank > interactive.rank
    assert rules.class_named("unheard of").name == "standard"


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
