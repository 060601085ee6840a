"""The scheduler's counts as metrics."""

import pytest
from fakes.desk import Desk, submission
from fakes.executor import geometry
from msgspec.structs import replace

from noria.proto.scheduling import Submit
from noria.services.scheduler.core.interface.events import SchedulerEvent
from noria.services.scheduler.core.interface.settings import CoreSettings
from noria.services.scheduler.core.scheduler import Scheduler
from noria.services.scheduler.observe.scheduler_metrics import SchedulerMetrics
from noria.shared.telemetry.instruments import METRICS, SCHEDULER_METRICS, label


def metrics(core: Scheduler, tenants_max: int = 50, now_ns: int = 0) -> SchedulerMetrics:
    return SchedulerMetrics(core.view, core.capacity, tenants_max, lambda: now_ns)


def standing(core: Scheduler, tenants_max: int = 50, now_ns: int = 0) -> dict[str, float]:
    """Values by name and labels, as `noria.requests waiting`."""
    return {
        " ".join([each.metric.name, *(str(given) for _, given in each.attributes)]): each.number
        for each in metrics(core, tenants_max, now_ns).values()
    }


def test_without_an_executor_no_blocks_are_reported() -> None:
    told = standing(Scheduler(CoreSettings()))
    assert not [name for name in told if name.startswith("noria.cache.blocks")]
    assert told["noria.requests waiting"] == 0


def test_every_value_is_of_a_metric_of_the_scheduler_with_its_attributes() -> None:
    core = Scheduler(CoreSettings(policy="fair"))
    core.apply(SchedulerEvent(0, Submit((submission(1),))))
    for value in metrics(core).values():
        assert value.metric in SCHEDULER_METRICS
        assert METRICS[value.metric.name] is value.metric
        assert tuple(name for name, _ in value.attributes) == value.metric.attributes
        assert [label(name) for name, _ in value.attributes] == [
            each.removeprefix("noria.") for each in value.metric.attributes
        ]


def test_shares_are_told_by_class_and_tenant_and_the_oldest_in_the_queue_by_its_age() -> None:
    core = Scheduler(CoreSettings(policy="fair"))
    core.apply(SchedulerEvent(0, Submit(tuple(replace(submission(each), tenant="someone") for each in (1, 2)))))
    core.apply(SchedulerEvent(3_000_000_000, Submit((replace(submission(3), tenant="another"),))))
    told = standing(core, now_ns=3_000_000_000)
    assert told["noria.share.waiting standard someone"] == 2
    assert told["noria.share.service standard someone"] == 0
    assert told["noria.queue.oldest"] == 3.0
    assert told["noria.requests waiting"] == 3
    assert standing(core, 1)["noria.share.waiting standard other"] >= 1


@pytest.mark.parametrize("host", [0, 20])
def test_what_a_tiny_cache_evicts_swaps_and_gives_up_is_told_as_it_is_counted(host: int) -> None:
    shape = geometry(num_blocks=12, page_size=1, max_slots=2, host_slots=host)
    desk = Desk(CoreSettings(safety_margin=0.0, steps_in_flight=1), shape)
    first = submission(1, prompt=4, output=6)
    desk.submit(first, submission(2, prompt=4, output=5))
    desk.run()
    desk.submit(replace(submission(3), prompt_ids=first.prompt_ids))
    desk.run()
    told, counters = standing(desk.core), desk.core.state.counters
    by_name = {
        "prompt_tokens": counters.prompt_tokens,
        "hit_tokens": counters.hit_tokens,
        "recovered_tokens": counters.recovered_tokens,
        "recomputed_tokens": counters.recomputed_tokens,
        "evictions": counters.evictions,
        "resets": counters.resets,
        "reset_tokens": counters.reset_tokens,
        "swaps out": counters.swaps_out,
        "swaps in": counters.swaps_in,
        "swapped_blocks": counters.swapped_blocks,
    }
    assert {name: told[f"noria.cache.{name}"] for name in by_name} == by_name
    of_swaps = {"swaps out", "swaps in", "swapped_blocks"}
    of_resets = {"recovered_tokens", "recomputed_tokens", "resets", "reset_tokens"}
    absent = of_resets if host else of_swaps
    assert {name for name, number in by_name.items() if not number} == absent
    assert by_name["prompt_tokens"] == 12
    assert told["noria.cache.blocks 0 cached"] > 0
