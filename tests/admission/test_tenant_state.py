"""Tenants: credentials, classes, limits and quotas."""

import pytest
from fakes.admission_bench import ALICE, BOB, SECOND, Bench, finishes, policy, tenant, token_request

from noria.proto.base import End, Service, Stream
from noria.proto.frontdoor import (
    Accepted,
    Acknowledge,
    Attach,
    Cancel,
    Code,
    Forecast,
    Generate,
    Identified,
    Identify,
    Preview,
    Rejected,
)
from noria.proto.output import TextRun, Texts
from noria.proto.scheduling import Expenses, Reclaimed, Reclaims, Spent
from noria.services.admission.core.state.events import PeerJoined, TenancyChanged
from noria.services.admission.core.tenants.class_totals import UsageKey
from noria.services.admission.core.tenants.tenant_policy import ClassRule

ACME, BETA = UsageKey("acme", "standard"), UsageKey("beta", "standard")


def bench(**limits: object) -> Bench:
    return Bench(policy=policy(tenant("acme", **limits), tenant("beta")))


def run(bench: Bench, name: str = "r1", tokens: int = 3, output: int = 4, **changes: object) -> int:
    """A request of acme from start to end; returns its number."""
    changes = {"credential": "acme", "max_tokens": 8, **changes}
    bench.generate(token_request(name, tokens, **changes))
    number = bench.accepted().request
    for choice in range(bench.core.state.ledger.requests[number].n):
        bench.text(number, 0, range(5, 5 + output), 0, "x" * output, choice=choice, end=End.STOP)
    bench.step()
    bench.read()
    return number


@pytest.mark.parametrize(
    ("credential", "words"), [("", "none was given"), ("acm", "not known"), ("\ud800", "not known")]
)
def test_a_key_that_is_nobodys_is_refused_and_not_repeated(credential: str, words: str) -> None:
    it = bench()
    it.generate(token_request(credential=credential))
    refused = it.rejection()
    assert (refused.code, refused.parameter) == (Code.UNAUTHORIZED, "credential")
    assert words in refused.reason
    assert it.idle()


def test_without_tenants_every_key_is_ignored_and_nothing_is_limited() -> None:
    it = Bench()
    it.generate(token_request(credential="whatever", traffic_class="batch"))
    it.accepted()
    assert [(each.tenant, each.traffic_class) for each in it.submissions()] == [("default", "batch")]


def test_a_submission_carries_tenant_class_and_a_salt_of_the_tenants_own() -> None:
    it = bench()
    it.generate(token_request("a", credential="acme"))
    first = it.submissions()[0]
    it.generate(token_request("a", credential="beta", traffic_class="batch"))
    second = it.submissions()[0]
    assert [(each.tenant, each.traffic_class) for each in (first, second)] == [("acme", "standard"), ("beta", "batch")]
    assert first.salt != second.salt and first.salt


@pytest.mark.parametrize(("traffic_class", "words"), [("admin", "may not be used"), ("bulk", "does not exist")])
def test_a_class_that_is_not_the_tenants_is_refused_by_name(traffic_class: str, words: str) -> None:
    it = bench()
    it.generate(token_request(credential="acme", traffic_class=traffic_class))
    refused = it.rejection()
    assert (refused.code, refused.parameter) == (Code.INVALID, "traffic_class")
    assert words in refused.reason and "interactive, standard, batch" in refused.reason


def test_the_same_id_of_two_tenants_is_two_requests_and_neither_ends_the_others() -> None:
    it = bench()
    it.generate(token_request("same", credential="acme"), ALICE)
    it.generate(token_request("same", credential="beta"), BOB)
    it.read(ALICE), it.read(BOB)
    assert it.core.snapshot()["requests"] == 2
    it.core.delivery.remove(it.core.delivery.clients[ALICE])
    it.core.state.orphans[100] = it.now_ns + SECOND
    # Bob speaks for beta alone: acme's request, which nobody reads, is not his to cancel.
    it.send(BOB, Cancel("same"))
    assert it.core.snapshot()["requests"] == 1
    assert 100 in it.core.state.ledger.live
    it.send(BOB, Attach("other", credential="beta"))
    it.send(BOB, Cancel("same", credential="acme"))
    assert it.core.snapshot()["requests"] == 0


def test_a_request_is_attached_to_with_its_tenants_key_alone() -> None:
    it = bench()
    it.generate(token_request("mine", credential="acme"))
    it.read()
    for credential, code in (("beta", Code.NOT_FOUND), ("", Code.UNAUTHORIZED)):
        it.send(BOB, Attach("mine", credential=credential))
        it.step()
        assert it.rejection(BOB).code is code
    it.send(BOB, Attach("mine", credential="acme"))
    it.step()
    assert it.accepted(BOB).id == "mine"


def test_concurrency_is_counted_in_streams_and_given_back_at_the_end() -> None:
    it = bench(concurrency_max=3)
    it.generate(token_request("a", n=2, credential="acme"))
    number = it.accepted().request
    it.generate(Generate("b", prompt="text", credential="acme"))
    it.generate(token_request("c", credential="acme"))
    refused = it.rejection()
    assert refused.code is Code.QUOTA and refused.retry_after_ms
    it.generate(token_request("c", credential="beta"), BOB)
    it.accepted(BOB)
    it.text(number, 0, (5,), 0, "x", end=End.STOP)
    it.generate(token_request("d", credential="acme"))
    it.read()
    it.tokenized(number + 1)
    assert it.core.snapshot()["requests"] == 4
    it.step()
    it.read()
    it.generate(token_request("e", n=4, credential="acme"))
    assert it.rejection().code is Code.INVALID


def test_the_bucket_is_charged_for_prompt_and_output_and_the_unused_part_comes_back() -> None:
    it = bench(tokens_per_minute=600, burst_tokens=60)
    it.generate(token_request("a", tokens=10, max_tokens=40, credential="acme"))
    number = it.accepted().request
    it.generate(token_request("b", tokens=10, max_tokens=10, credential="acme"))
    refused = it.rejection()
    # 10 tokens are left, 20 are wanted, 10 a second come in.
    assert (refused.code, refused.retry_after_ms) == (Code.QUOTA, 1000)
    it.text(number, 0, (5, 6), 0, "xx", end=End.STOP)
    it.step()
    it.read()
    it.generate(token_request("b", tokens=10, max_tokens=38, credential="acme"))
    it.accepted()


def test_the_named_wait_is_enough_and_a_little_less_is_not() -> None:
    it = bench(tokens_per_minute=600, burst_tokens=60)
    run(it, "a", tokens=10, output=4, max_tokens=50)
    it.generate(token_request("b", tokens=20, max_tokens=40, credential="acme"))
    wait_ms = it.rejection().retry_after_ms
    assert wait_ms == 1400
    it.pass_time((wait_ms - 1) / 1000)
    it.generate(token_request("c", tokens=20, max_tokens=40, credential="acme"))
    assert it.rejection().retry_after_ms == 1
    it.pass_time(0.001)
    it.generate(token_request("d", tokens=20, max_tokens=40, credential="acme"))
    it.accepted()


def test_an_empty_bucket_refuses_before_anything_is_tokenized() -> None:
    it = bench(tokens_per_minute=60, burst_tokens=60)
    it.generate(token_request("a", tokens=20, max_tokens=40, credential="acme"))
    it.accepted()
    it.generate(Generate("b", prompt="four letters a token", credential="acme"))
    assert not it.turn.jobs
    assert it.rejection().retry_after_ms == 5000


def test_what_exceeds_the_burst_is_a_mistake_and_not_a_matter_of_time() -> None:
    it = bench(tokens_per_minute=600, burst_tokens=30)
    it.generate(token_request("a", tokens=10, max_tokens=30, credential="acme"))
    refused = it.rejection()
    assert (refused.code, refused.parameter, refused.retry_after_ms) == (Code.INVALID, "max_tokens", None)


def test_without_max_tokens_the_ninth_decile_of_the_tenants_answers_is_reserved() -> None:
    it = bench(tokens_per_minute=60_000, burst_tokens=10_000)
    for number in range(10):
        run(it, f"warm-{number}", tokens=1, output=number + 1, max_tokens=20)
    it.generate(token_request("a", tokens=5, n=2, credential="acme"))
    number = it.accepted().request
    assert it.core.state.ledger.live[number].reserved_tokens == 5 + 2 * 9
    # The answer itself may be longer than what was reserved for it.
    assert it.submissions()[0].sampling.max_tokens == 59


def test_what_was_used_beyond_the_reservation_is_owed() -> None:
    it = bench(tokens_per_minute=60, burst_tokens=40)
    run(it, "warm", tokens=1, output=1, max_tokens=2)
    it.pass_time(60)
    run(it, "long", tokens=10, output=50, max_tokens=None)
    it.generate(token_request("next", tokens=1, max_tokens=1, credential="acme"))
    refused = it.rejection()
    # 40 were there and 60 used: 20 are owed, and one more is wanted before the next prompt is even looked at.
    assert (refused.code, refused.retry_after_ms) == (Code.QUOTA, 21_000)


@pytest.mark.parametrize("reason", ["cancel", "refuse"])
def test_what_was_never_begun_costs_nothing(reason: str) -> None:
    it = bench(tokens_per_minute=60, burst_tokens=50)
    if reason == "cancel":
        it.generate(token_request("a", tokens=10, max_tokens=40, credential="acme"))
        it.send(ALICE, Cancel("a"))
    else:
        it.generate(token_request("a", tokens=100, max_tokens=1, credential="acme"))
    it.step()
    it.read()
    it.generate(token_request("b", tokens=10, max_tokens=40, credential="acme"))
    it.accepted()


@pytest.mark.parametrize(
    ("limits", "rule", "changes", "parameter"),
    [
        ({"n_max": 1}, None, {"n": 2}, "n"),
        ({"output_tokens_max": 5}, None, {"max_tokens": 6}, "max_tokens"),
        ({"prompt_tokens_max": 2}, None, {}, "prompt"),
        ({}, ClassRule("standard", output_tokens_max=5), {"max_tokens": 6}, "max_tokens"),
        ({}, ClassRule("standard", prompt_tokens_max=2), {}, "prompt"),
        ({"output_tokens_max": 4}, ClassRule("standard", output_tokens_max=5), {"min_tokens": 5}, "min_tokens"),
    ],
)
def test_limits_of_tenant_and_class_are_refused_by_name(
    limits: dict[str, int], rule: ClassRule | None, changes: dict[str, int], parameter: str
) -> None:
    it = Bench(policy=policy(tenant("acme", **limits), standard=rule or ClassRule("standard")))
    it.generate(token_request(credential="acme", **changes))
    refused = it.rejection()
    assert (refused.parameter, refused.retry_after_ms) == (parameter, None)


def test_the_lesser_limit_stands_in_for_an_absent_max_tokens() -> None:
    it = Bench(policy=policy(tenant("acme", output_tokens_max=9), standard=ClassRule("standard", output_tokens_max=7)))
    it.generate(token_request(credential="acme"))
    assert it.submissions()[0].sampling.max_tokens == 7


def test_a_class_gives_its_time_to_live_to_requests_that_name_none() -> None:
    it = Bench(policy=policy(tenant("acme"), standard=ClassRule("standard", ttl_first_ms=500, ttl_ms=9000)))
    it.generate(token_request("a", credential="acme"))
    assert (it.submissions()[0].ttl_first_ms, it.submissions()[0].ttl_ms) == (500, 9000)
    it.generate(token_request("b", credential="acme", ttl_ms=70))
    assert (it.submissions()[0].ttl_first_ms, it.submissions()[0].ttl_ms) == (500, 70)


def test_usage_is_written_down_once_at_the_end_and_the_cost_when_the_scheduler_has_done() -> None:
    it = bench()
    number = run(it, tokens=3, output=4)
    used = it.used[ACME]
    assert (used.requests, used.prompt_tokens, used.output_tokens, used.computed_tokens) == (1, 3, 4, 0)
    it.from_peer(Expenses((Spent(Stream(number, 0), 8, 2, 700),), 1))
    it.step()
    used = it.used[ACME]
    assert (used.requests, used.prompt_tokens, used.computed_tokens, used.wasted_tokens, used.block_us) == (
        0, 0, 8, 2, 700,
    )  # fmt: skip
    it.from_peer(Expenses((Spent(Stream(number, 0), 8, 2, 700),), 1))
    it.step()
    assert it.used == {}
    assert it.core.state.usage_counters.awaited == 0


def test_of_a_prompt_that_came_to_nothing_what_was_computed_is_charged() -> None:
    it = bench(tokens_per_minute=60, burst_tokens=50)
    it.generate(token_request("a", tokens=30, max_tokens=20, credential="acme"))
    number = it.accepted().request
    it.send(ALICE, Cancel("a"))
    it.step()
    it.from_peer(Expenses((Spent(Stream(number, 0), 16, 0, 5),), 1))
    it.step()
    used = it.used[ACME]
    assert (used.prompt_tokens, used.computed_tokens) == (16, 16)
    tenants = it.core.snapshot()["tenants"]
    assert isinstance(tenants, dict) and tenants["acme"]["tokens"] == 34


def test_from_cancel_to_reclaim_is_known_by_tenant_and_class() -> None:
    it = bench()
    it.generate(token_request("a", credential="acme"))
    number = it.accepted().request
    it.text(number, 0, (5,), 0, "x")
    it.send(ALICE, Cancel("a"))
    it.step()
    it.from_peer(Reclaims((Reclaimed(Stream(number, 0), 3, 1, 900),)))
    it.from_peer(Expenses((Spent(Stream(number, 0), 5, 1, 10),), 1))
    (shown,) = it.core.snapshot()["traffic"]  # type: ignore[misc]  # plain values
    assert (shown["reclaims"], shown["reclaim_us_max"], shown["used"]["wasted_tokens"]) == (1, 900, 1)
    assert shown["ended"] == {"cancelled": 1}


def test_a_lost_scheduler_takes_what_it_knew_of_costs_with_it() -> None:
    it = bench()
    run(it)
    it.apply(PeerJoined(Service.SCHEDULER))
    assert it.core.state.usage_counters.awaited == 0


def test_an_idempotent_request_is_answered_again_after_its_end_and_used_once() -> None:
    it = bench()
    body = token_request("once", credential="acme", keep=True, max_tokens=8)
    number = run(it, "once", keep=True)
    it.send(ALICE, Acknowledge(("once",)))
    it.read()
    it.generate(body, BOB)
    again = it.accepted(BOB)
    assert again.request == number
    it.send(BOB, Acknowledge(("once",)))
    assert not it.submissions() and not it.used
    it.generate(token_request("once", tokens=4, credential="acme", keep=True), BOB)
    assert it.rejection(BOB).code is Code.CONFLICT
    it.pass_time(61)
    assert it.core.snapshot()["retained"] == 0


def test_an_idempotent_request_that_nobody_reads_goes_on_for_a_while() -> None:
    it = bench()
    body = token_request("once", credential="acme", keep=True)
    it.generate(body)
    number = it.accepted().request
    it.send(ALICE, Cancel("once", left=True))
    it.step()
    it.text(number, 0, (5, 6), 0, "xy")
    it.generate(body, BOB)
    assert it.accepted(BOB).request == number
    it.send(BOB, Cancel("once", left=True))
    it.send(BOB, Cancel("once", left=True))
    it.pass_time(14)
    assert it.core.snapshot()["streams"] == 1
    it.pass_time(2)
    assert it.core.snapshot()["streams"] == 0


def test_an_idempotent_request_that_ended_without_its_answer_is_run_again() -> None:
    it = bench()
    body = token_request("once", credential="acme", keep=True)
    it.generate(body)
    first = it.accepted().request
    it.send(ALICE, Cancel("once"))
    it.step()
    it.read()
    it.generate(body)
    assert it.accepted().request != first


def test_a_repetition_that_arrives_late_is_told_the_end_that_its_client_has_not_heard_of() -> None:
    it = bench()
    body = token_request("once", credential="acme", keep=True, ttl_ms=1_000)
    it.generate(body)
    first = it.accepted().request
    it.deaf.add(ALICE)
    it.pass_time(2)
    it.generate(body)
    it.deaf.clear()
    it.pass_time(1)
    messages = it.read()
    assert [each.request for each in messages if isinstance(each, Accepted)] == [first]
    assert [each.end for each in finishes(messages)] == [End.DEADLINE]
    assert not it.submissions()


def test_what_goes_on_under_a_new_scheduler_says_what_it_was_charged_for() -> None:
    it = bench()
    it.generate(token_request(tokens=10, credential="acme"))
    assert it.submissions()[0].service == 0
    number = it.accepted().request
    it.from_peer(Texts((TextRun(Stream(number, 0), 0, 0, (5, 6), 0, "xy", cached_tokens=4),)))
    it.apply(PeerJoined(Service.SCHEDULER))
    it.step()
    assert it.submissions()[0].service == pytest.approx(6 * 1.0 + 4 * 0.1 + 2 * 2.0)


def test_a_key_says_whose_it_is() -> None:
    it = bench()
    it.send(ALICE, Identify("q", "acme"))
    it.send(ALICE, Identify("r", "nobody"))
    it.step()
    known, unknown = it.read()
    assert known == Identified("q", "acme", ("interactive", "standard", "batch"), "standard")
    assert isinstance(unknown, Rejected) and unknown.code is Code.UNAUTHORIZED


def test_a_change_of_tenants_leaves_what_is_under_way_and_binds_what_comes() -> None:
    it = bench(tokens_per_minute=600, burst_tokens=50)
    it.generate(token_request("a", tokens=10, max_tokens=30, credential="acme"))
    number = it.accepted().request
    it.apply(TenancyChanged(policy(tenant("acme", concurrency_max=1)), it.now_ns))
    it.generate(token_request("b", credential="acme"))
    assert it.rejection().code is Code.QUOTA
    it.generate(token_request("c", credential="beta"))
    assert it.rejection().code is Code.UNAUTHORIZED
    it.apply(TenancyChanged(policy(tenant("beta")), it.now_ns))
    it.text(number, 0, (5,), 0, "x", end=End.STOP)
    it.step()
    assert [each.end for each in finishes(it.read())] == [End.STOP]
    assert it.used[ACME].output_tokens == 1
    it.generate(token_request("d", credential="beta"))
    it.accepted()


def preview(it: Bench, body: Generate) -> Forecast:
    it.send(ALICE, Preview(body))
    it.step()
    (answer,) = it.read()
    assert isinstance(answer, Forecast)
    return answer


def test_a_preview_of_what_would_be_admitted_takes_nothing() -> None:
    it = bench(tokens_per_minute=60, burst_tokens=50)
    answer = preview(it, token_request("q", tokens=10, max_tokens=40, credential="acme", traffic_class="batch"))
    assert (answer.id, answer.admitted, answer.traffic_class) == ("q", True, "batch")
    assert (answer.prompt_tokens, answer.output_tokens, answer.code) == (10, 40, None)
    assert it.idle()
    assert it.core.snapshot()["totals"] == Bench().core.snapshot()["totals"]
    it.generate(token_request("q", tokens=10, max_tokens=40, credential="acme"))
    it.accepted()


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (token_request("q", credential="no"), Code.UNAUTHORIZED),
        (token_request("q", credential="acme", traffic_class="admin"), Code.INVALID),
        (token_request("q", tokens=60, max_tokens=10, credential="acme"), Code.CONTEXT_LENGTH),
        (token_request("q", tokens=30, max_tokens=30, credential="acme"), Code.QUOTA),
        (token_request("a b", credential="acme"), Code.INVALID),
    ],
)
def test_a_preview_says_why_a_request_would_be_refused(body: Generate, code: Code) -> None:
    it = bench(tokens_per_minute=60, burst_tokens=60)
    run(it, "before", tokens=1, output=1, max_tokens=2)
    it.read()
    answer = preview(it, body)
    assert (answer.admitted, answer.code) == (False, code)
    assert (answer.retry_after_ms is not None) is (code is Code.QUOTA)
    rejected = it.core.snapshot()["rejected"]
    assert isinstance(rejected, dict) and not any(rejected.values())


def test_a_preview_of_text_waits_for_its_tokens_and_takes_no_place_meanwhile() -> None:
    it = bench(concurrency_max=1)
    body = Generate("q", prompt="text", credential="acme")
    it.send(ALICE, Preview(body))
    it.step()
    (job,) = it.turn.jobs
    it.send(ALICE, Preview(body))
    it.generate(token_request("r", credential="acme"))
    it.accepted()
    it.tokenized(job.number)
    it.step()
    (answer,) = it.read()
    assert isinstance(answer, Forecast)
    # By now a real request has taken the place; a preview promises nothing and counts nothing.
    assert answer.prompt_tokens == 3
    it.send(BOB, Preview(body))
    it.step()
    (refused,) = it.read(BOB)
    assert isinstance(refused, Forecast) and refused.code is Code.QUOTA
