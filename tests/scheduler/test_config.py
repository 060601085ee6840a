"""What the core is told of the configuration."""

import pytest

from noria.services.scheduler.config import rules_of, scheduler_settings
from noria.services.scheduler.core.interface.traffic_rules import TrafficClass
from noria.shared.config.config import CacheSettings, Config, SchedulerSettings
from noria.shared.config.tenants import TenantSettings


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


@pytest.mark.parametrize(
    ("share", "request_tokens", "isolated", "pages", "cramped"),
    [
        (0.02, 320, True, 20, False),  # 20 pages of 16 tokens: a fifth of the cache
        (0.02, 500, True, 2, True),  # 32 pages would be more than a quarter
        (0.02, None, True, 2, True),  # nobody knows how much it may be
        (0.3, 320, True, 30, False),
        (0.02, 320, False, 2, False),
    ],
)
def test_an_isolated_class_reserves_one_request_of_its_limits_where_that_is_a_small_part(
    share: float, request_tokens: int | None, isolated: bool, pages: int, cramped: bool
) -> None:
    terms = TrafficClass("admin", reserved_cache=share, isolated=isolated, request_tokens=request_tokens)
    assert terms.reserved_pages(100, 16) == pages
    assert terms.cramped(100, 16) is cramped


def test_the_limits_of_the_built_in_pool_are_what_one_of_its_requests_may_need() -> None:
    admin = rules_of(Config()).class_named("admin")
    assert admin.request_tokens == 2048 + 512
    assert rules_of(Config()).class_named("standard").request_tokens is None
