"""What is done when there is more work than room: who is refused, who is dropped, who gets in all the same."""

import pytest
from fakes.admission_bench import ALICE, BOB, Bench, finishes, policy, tenant, token_request

from noria.proto.base import End
from noria.proto.frontdoor import Code, Forecast, Generate, Preview
from noria.proto.scheduling import Capacity, ClassCapacity, StepTime, Withdraw
from noria.services.admission.core.tenants.tenant_policy import ClassRule


def full(requests: int = 3, tokens: int = 10_000, **classes: ClassRule) -> Bench:
    """A bench with room for so much."""
    it = Bench(policy=policy(tenant("acme"), tenant("root", classes=("admin",), default_class="admin"), **classes))
    it.capacity(requests=requests, tokens=tokens)
    return it


def ask(it: Bench, name: str, traffic_class: str, tokens: int = 3, **changes: object) -> None:
    it.generate(token_request(name, tokens, credential="acme", traffic_class=traffic_class, **changes), ALICE)


def ended(it: Bench) -> list[tuple[str, End]]:
    return [(each.id, each.end) for each in finishes(it.read())]


def test_the_lowest_class_is_shed_first_and_in_it_the_newest() -> None:
    it = full(3)
    for name, traffic_class in (("b1", "batch"), ("s1", "standard"), ("b2", "batch")):
        ask(it, name, traffic_class)
    it.read()
    ask(it, "i1", "interactive")
    assert ended(it) == [("b2", End.SHED)]
    ask(it, "i2", "interactive")
    assert ended(it) == [("b1", End.SHED)]
    ask(it, "i3", "interactive")
    assert ended(it) == [("s1", End.SHED)]
    ask(it, "i4", "interactive")
    assert it.rejection().code is Code.OVERLOADED


def test_what_is_shed_is_withdrawn_in_the_turn_in_which_what_replaces_it_is_submitted() -> None:
    it = full(1)
    ask(it, "b", "batch")
    it.read()
    ask(it, "i", "interactive")
    assert [each.stream.request for each in it.submissions()] == [101]
    assert any(isinstance(each, Withdraw) and each.end is End.SHED for each in it.turn.scheduler)


@pytest.mark.parametrize(("held", "wanting"), [("batch", "batch"), ("standard", "batch"), ("standard", "standard")])
def test_no_class_sheds_its_equals_or_betters(held: str, wanting: str) -> None:
    it = full(1)
    ask(it, "first", held)
    it.read()
    ask(it, "second", wanting)
    refused = it.rejection()
    assert (refused.code, refused.retry_after_ms) == (Code.OVERLOADED, 1000)


def test_who_has_a_token_is_never_shed() -> None:
    it = full(1)
    ask(it, "b", "batch")
    it.text(it.accepted().request, 0, (5,), 0, "x")
    it.step()
    it.read()
    ask(it, "i", "interactive")
    assert it.rejection().code is Code.OVERLOADED


def test_room_for_tokens_is_made_too_and_nothing_is_shed_in_vain() -> None:
    it = full(10, 50)
    for name in ("b1", "b2"):
        ask(it, name, "batch", tokens=20)
    it.read()
    ask(it, "i1", "interactive", tokens=30)
    assert ended(it) == [("b2", End.SHED)]
    ask(it, "i2", "interactive", tokens=50)
    assert it.rejection().code is Code.OVERLOADED
    assert it.core.snapshot()["streams"] == 2


def test_a_classs_own_bound_refuses_it_alone() -> None:
    it = full(10, standard=ClassRule("standard", queue_requests_max=1), batch=ClassRule("batch", 0, queue_tokens_max=5))
    ask(it, "s1", "standard")
    it.read()
    ask(it, "s2", "standard")
    refused = it.rejection()
    assert refused.code is Code.OVERLOADED and "class standard" in refused.reason
    ask(it, "b1", "batch", tokens=6)
    assert "class batch" in it.rejection().reason
    ask(it, "b2", "batch", tokens=5)
    it.accepted()
    # A stream with a token waits no more.
    it.text(100, 0, (5,), 0, "x")
    it.step()
    it.read()
    ask(it, "s3", "standard")
    it.accepted()


def test_an_isolated_class_is_admitted_up_to_its_own_bound_when_all_else_is_full() -> None:
    it = full(0)
    ask(it, "i", "interactive")
    assert it.rejection().code is Code.OVERLOADED
    for name in ("a1", "a2"):
        it.generate(token_request(name, credential="root"), BOB)
        it.accepted(BOB)
    it.generate(token_request("a3", credential="root"), BOB)
    assert it.rejection(BOB).code is Code.OVERLOADED
    assert not ended(it)


def test_an_isolated_class_is_admitted_beyond_the_bound_on_unfinished_requests() -> None:
    it = full(100)
    for number in range(8):
        ask(it, f"s{number}", "standard")
    it.read()
    ask(it, "s8", "standard")
    assert "8 requests are unfinished" in it.rejection().reason
    it.generate(token_request("a", credential="root"), BOB)
    it.accepted(BOB)


def test_a_preview_sheds_nobody() -> None:
    it = full(1)
    ask(it, "b", "batch")
    it.read()
    it.send(ALICE, Preview(token_request("q", credential="acme", traffic_class="interactive")))
    it.step()
    (answer,) = it.read()
    assert isinstance(answer, Forecast) and answer.admitted
    assert it.core.snapshot()["streams"] == 1


def test_credit_of_a_class_of_its_own_is_counted_apart() -> None:
    it = full(100)
    offers = (ClassCapacity("", 100, 10_000), ClassCapacity("batch", 1, 10_000), ClassCapacity("standard", 2, 10_000))
    it.from_peer(Capacity(0, offers, largest_tokens=64, ready=True))
    ask(it, "b1", "batch")
    it.accepted()
    ask(it, "b2", "batch")
    assert it.rejection().code is Code.OVERLOADED
    ask(it, "s1", "standard")
    it.accepted()


def busy(it: Bench, start_ms: float) -> None:
    """The scheduler says that the next request waits so long, and how fast steps are: a millisecond a token."""
    fit = StepTime(1000.0, 100.0, 0.0, 0.0)
    offers = (ClassCapacity("", 100, 10_000, start_ms=start_ms),)
    it.from_peer(
        Capacity(it.core.state.credit.sent, offers, fit, 64, True, step_ms=1.0, prefill_tokens=10, prefill_step_ms=2.0)
    )


@pytest.mark.parametrize(
    ("ttl", "start_ms", "admitted", "retries"),
    [
        ({"ttl_first_ms": 500}, 100.0, True, False),
        ({"ttl_first_ms": 500}, 900.0, False, True),
        ({"ttl_ms": 500}, 100.0, True, False),
        ({"ttl_ms": 10}, 0.0, False, False),
        ({}, 90_000.0, True, False),
    ],
)
def test_a_deadline_that_cannot_be_kept_is_refused_at_once_with_an_honest_wait(
    ttl: dict[str, int], start_ms: float, admitted: bool, retries: bool
) -> None:
    it = full(100)
    busy(it, start_ms)
    ask(it, "d", "standard", max_tokens=20, **ttl)
    (answer,) = it.read()
    if admitted:
        assert type(answer).__name__ == "Accepted"
        return
    assert answer.code is Code.DEADLINE  # type: ignore[union-attr]  # a refusal
    assert answer.parameter == next(iter(ttl))  # type: ignore[union-attr]  # as above
    wait_ms = answer.retry_after_ms  # type: ignore[union-attr]  # as above
    assert (wait_ms is not None) is retries
    if wait_ms is not None:
        busy(it, start_ms - wait_ms)
        ask(it, "again", "standard", max_tokens=20, **ttl)
        it.accepted()


def test_a_refusal_for_a_deadline_charges_nothing_and_sheds_nobody() -> None:
    it = full(1)
    ask(it, "b", "batch")
    it.read()
    offers = (ClassCapacity("", 0, 10_000, start_ms=900.0),)
    it.from_peer(Capacity(1, offers, StepTime(1000.0), 64, True))
    ask(it, "i", "interactive", ttl_first_ms=10)
    assert it.rejection().code is Code.DEADLINE
    assert it.core.snapshot()["streams"] == 1


def test_text_of_each_tenant_and_class_gets_a_fair_share_of_the_tokenizer() -> None:
    it = full(100)
    for traffic_class in ("batch", "interactive"):
        it.send(ALICE, Generate(traffic_class, prompt="x", credential="acme", traffic_class=traffic_class))
    it.step()
    assert [job.owner for job in it.turn.jobs] == [f"acme batch {ALICE}", f"acme interactive {ALICE}"]
