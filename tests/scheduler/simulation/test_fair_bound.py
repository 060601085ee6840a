"""How far apart two tenants can be, for any arrivals and lengths; and that nothing is bought with idle capacity.

The bound. A tenant f is chosen only when its counter is least. From then on, without being chosen again, it can be charged
for what its requests in slots still lack: at most S requests of P prompt and O output tokens, S (P p + O q) by prices p
and q. So while f and g contend, their counters are apart by at most that over the weight, in each direction, and over any
interval the difference in weighted service is at most

    S (P p + O q) (1 / w_f + 1 / w_g) + n T max(p, q) / min(w_f, w_g)

where the last term is for n steps in flight of T tokens each: a request that was preempted with a result in flight can't
be placed until that is there, and what is charged for it may be paid back. (Sheng et al., 2024, have 2 max(w_p L, w_q M),
with M tokens in a batch for what is S (P + O) here.)

A scheduler that dies takes the counters with it. Its successor is told what unfinished requests were served, and nothing
of those that have ended: the counters begin anew within the same distance of each other, so over an interval in which it
dies k times the difference is at most k + 1 times as large. Chunks, caps and pages do not add to it: a chunk is a part of what the
request lacks, a cap delays only whoever was chosen, and who waits for blocks lets nobody of its class pass. Between classes
it is the same with class weights, of classes without reservations; a class with an inter-token target may be ahead by its
head start H, which adds H / w to it.
"""

import pytest
from fakes.crowd import Arrival, Crowd, Party
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from noria.services.scheduler.core.interface.settings import CoreSettings
from noria.services.scheduler.core.interface.traffic_rules import FairRules, ServicePrices, TrafficClass

PROMPT_MAX = 24
OUTPUT_MAX = 8
MANY = settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


def bound(slots: int, tokens: int, steps: int, prices: ServicePrices, weights: tuple[float, float]) -> float:
    """The theoretical bound, as above."""
    whole = slots * (PROMPT_MAX * max(prices.prompt, prices.cached) + OUTPUT_MAX * prices.output)
    return whole * sum(1 / each for each in weights) + steps * tokens * max(prices.prompt, prices.output) / min(weights)


@st.composite
def floods(draw: st.DrawFn, parties: tuple[Party, ...]) -> list[Arrival]:
    """Each party comes with a flood or in bursts, now or later, with lengths of its own kind."""
    arrivals: list[Arrival] = []
    for party in parties:
        step = draw(st.integers(0, 60))
        prompts = draw(st.sampled_from([(1, 3), (PROMPT_MAX, PROMPT_MAX), (1, PROMPT_MAX)]))
        outputs = draw(st.sampled_from([(1, 1), (OUTPUT_MAX, OUTPUT_MAX), (1, OUTPUT_MAX)]))
        lengths = st.tuples(st.integers(*prompts), st.integers(*outputs))
        for prompt, output in draw(st.lists(lengths, min_size=15, max_size=35)):
            arrivals.append(Arrival(step, party, prompt, output))
            step += draw(st.sampled_from([0, 0, 0, 0, 0, 1, 30]))
    return arrivals


@st.composite
def limits(draw: st.DrawFn) -> dict[str, int]:
    """A small machine."""
    return {
        "max_requests_per_batch": draw(st.integers(1, 4)),
        "max_batch_tokens": draw(st.sampled_from([1, 2, 4, 8, 16])),
        "steps_in_flight": draw(st.integers(1, 2)),
    }


DEATHS = st.frozensets(st.integers(1, 150), min_size=1, max_size=4)


ONE, OTHER = ("standard", "one"), ("standard", "other")
TENANTS: tuple[Party, ...] = (ONE, OTHER, ("standard", "third"))


@MANY
@given(
    floods(TENANTS),
    limits(),
    st.tuples(st.sampled_from([1.0, 2.0, 5.0]), st.sampled_from([1.0, 3.0])),
    st.booleans(),
)
def test_two_tenants_that_contend_are_served_alike_within_the_bound(
    arrivals: list[Arrival], machine: dict[str, int], weights: tuple[float, float], tight: bool
) -> None:
    rules = FairRules(tenants={"one": weights[0], "other": weights[1]})
    crowd = Crowd(CoreSettings(policy="fair", rules=rules, **machine), blocks=12 if tight else 4096)
    crowd.run(arrivals)
    allowed = bound(
        machine["max_requests_per_batch"],
        machine["max_batch_tokens"],
        machine["steps_in_flight"],
        rules.prices,
        weights,
    )
    assert crowd.spread(ONE, OTHER, weights) <= allowed


@MANY
@given(
    floods(TENANTS),
    limits(),
    st.tuples(st.sampled_from([1.0, 2.0, 5.0]), st.sampled_from([1.0, 3.0])),
    st.booleans(),
    DEATHS,
)
def test_each_death_of_the_scheduler_widens_the_bound_by_itself_once(
    arrivals: list[Arrival], machine: dict[str, int], weights: tuple[float, float], tight: bool, deaths: frozenset[int]
) -> None:
    """What unfinished requests were served is carried over; who was ahead by what has ended is forgiven."""
    rules = FairRules(tenants={"one": weights[0], "other": weights[1]})
    crowd = Crowd(CoreSettings(policy="fair", rules=rules, **machine), blocks=12 if tight else 4096, deaths=deaths)
    crowd.run(arrivals)
    allowed = bound(
        machine["max_requests_per_batch"],
        machine["max_batch_tokens"],
        machine["steps_in_flight"],
        rules.prices,
        weights,
    )
    assert crowd.spread(ONE, OTHER, weights) <= (1 + len(deaths)) * allowed


CLASSES = (("interactive", "one"), ("batch", "one"), ("batch", "other"))


@MANY
@given(floods(CLASSES), limits(), st.sampled_from([1.0, 4.0]), st.sampled_from([None, 50.0]))
def test_two_classes_that_contend_are_served_alike_within_the_bound(
    arrivals: list[Arrival], machine: dict[str, int], weight: float, itl_target_ms: float | None
) -> None:
    lead = 100.0  # a few requests' worth here
    classes = (
        TrafficClass("interactive", weight=weight, itl_target_ms=itl_target_ms, head_start=lead),
        TrafficClass("batch"),
    )
    crowd = Crowd(CoreSettings(policy="fair", rules=FairRules(classes=classes), **machine))
    crowd.run(arrivals)
    for served, contending in zip(crowd.served, crowd.contending, strict=True):
        served["", "batch"] = sum(amount for (name, _), amount in served.items() if name == "batch")
        if any(name == "batch" for name, _ in contending):
            contending.add(("", "batch"))
    weights = (weight, 1.0)
    allowed = bound(
        machine["max_requests_per_batch"],
        machine["max_batch_tokens"],
        machine["steps_in_flight"],
        ServicePrices(),
        weights,
    )
    allowed += lead / weight if itl_target_ms is not None else 0.0
    assert crowd.spread(("interactive", "one"), ("", "batch"), weights) <= allowed


def flood_and_trickle() -> list[Arrival]:
    """One tenant floods; the other comes a little later."""
    flood = [Arrival(0, ONE, PROMPT_MAX, OUTPUT_MAX) for _ in range(60)]
    return [*flood, *(Arrival(5, OTHER, 6, 4) for _ in range(60))]


@pytest.mark.parametrize(("policy", "fair"), [("fifo", False), ("prefill_first", False), ("fair", True)])
def test_those_who_go_by_age_break_the_bound(policy: str, fair: bool) -> None:
    machine = {"max_requests_per_batch": 4, "max_batch_tokens": 16, "steps_in_flight": 2}
    crowd = Crowd(CoreSettings(policy=policy, **machine))
    crowd.run(flood_and_trickle())
    assert (crowd.spread(ONE, OTHER, (1.0, 1.0)) <= bound(4, 16, 2, ServicePrices(), (1.0, 1.0))) is fair


@pytest.mark.parametrize(("policy", "fair"), [("fifo", False), ("fair", True)])
def test_those_who_go_by_age_break_the_bound_with_deaths_too(policy: str, fair: bool) -> None:
    machine = {"max_requests_per_batch": 4, "max_batch_tokens": 16, "steps_in_flight": 2}
    crowd = Crowd(CoreSettings(policy=policy, **machine), deaths=frozenset({40, 90}))
    flood = [Arrival(0, ONE, PROMPT_MAX, OUTPUT_MAX) for _ in range(90)]
    crowd.run([*flood, *(Arrival(5, OTHER, 6, 4) for _ in range(90))])
    assert crowd.adopted > 4, "caches are taken over"
    assert (crowd.spread(ONE, OTHER, (1.0, 1.0)) <= 3 * bound(4, 16, 2, ServicePrices(), (1.0, 1.0))) is fair


def test_what_unfinished_requests_were_served_before_a_death_counts_after_it_exactly() -> None:
    machine = {"max_requests_per_batch": 4, "max_batch_tokens": 16, "steps_in_flight": 1}
    crowd = Crowd(CoreSettings(policy="fair", **machine), deaths=frozenset({30}))
    crowd.run([Arrival(0, ONE, 12, 60) for _ in range(4)] + [Arrival(29, OTHER, 12, 4) for _ in range(40)])
    charged = {("standard", each.tenant): each.charged for each in crowd.core.state.policy.standings()}
    assert charged == pytest.approx(crowd.served[-1])


@MANY
@given(st.integers(1, 60), limits())
@example(50, {"max_requests_per_batch": 4, "max_batch_tokens": 16, "steps_in_flight": 2})
def test_whoever_was_idle_has_saved_up_nothing(idle: int, machine: dict[str, int]) -> None:
    """The other tenant was served for long; from the return on both are served alike."""
    busy = [Arrival(0, ONE, 12, 4) for _ in range(60)]
    crowd = Crowd(CoreSettings(policy="fair", **machine))
    crowd.run([Arrival(0, OTHER, 1, 1), *busy, *(Arrival(idle, OTHER, 12, 4) for _ in range(60))])
    allowed = bound(
        machine["max_requests_per_batch"],
        machine["max_batch_tokens"],
        machine["steps_in_flight"],
        ServicePrices(),
        (1.0, 1.0),
    )
    assert crowd.spread(ONE, OTHER, (1.0, 1.0)) <= allowed


@MANY
@given(floods(TENANTS), limits())
def test_no_token_is_left_while_there_is_work_for_it(arrivals: list[Arrival], machine: dict[str, int]) -> None:
    """A step is full, or every slot is taken or nobody waits, and then no prompt that has a slot is left unfinished."""
    crowd = Crowd(CoreSettings(policy="fair", **machine))
    crowd.run(arrivals)
    board = crowd.core.state
    assert len(board.decisions.steps) > 10
    for step in board.decisions.steps:
        if step.tokens < step.tokens_max:
            assert step.running >= machine["max_requests_per_batch"] or not step.waiting
    fifo = Crowd(CoreSettings(policy="fifo", **machine))
    fifo.run(arrivals)
    assert len(crowd.tokens) <= 1.1 * len(fifo.tokens) + 10
    assert sum(crowd.tokens) == sum(fifo.tokens)


@MANY
@given(st.integers(1, 4), st.sampled_from([4, 8, 16]), st.integers(0, 30))
def test_a_long_prompt_is_not_starved_by_a_stream_of_short_ones(slots: int, tokens: int, step: int) -> None:
    """Even where it needs most of the cache, and small ones of other tenants and of a higher class would always fit."""
    machine = {"max_requests_per_batch": slots, "max_batch_tokens": tokens, "steps_in_flight": 2}
    classes = (TrafficClass("interactive", rank=2, weight=4.0), TrafficClass("standard"))
    short: list[Party] = [("standard", "one"), ("interactive", "one")]
    arrivals = [Arrival(each // 2, short[each % 2], 3, 2) for each in range(300)]
    arrivals.append(Arrival(step, ("standard", "long"), 60, 4))
    crowd = Crowd(CoreSettings(policy="fair", rules=FairRules(classes=classes), **machine), blocks=24)
    crowd.run(arrivals)
    assert crowd.ends[300] <= len(crowd.tokens) * 3 // 4
