"""The cost of a stream is counted once, whichever process dies between the scheduler's message and the disk."""

from fakes.admission_bench import ALICE, Bench, policy, tenant, token_request

from noria.proto.base import End, Ended, Service, Stream
from noria.proto.frontdoor import Acknowledge, Cancel
from noria.proto.scheduling import Accounted, Expenses, Spent
from noria.services.admission.core.state.events import PeerJoined, PeerMessage
from noria.services.admission.core.tenants.class_totals import UsageKey

ACME = UsageKey("acme", "standard")
LIFE, NEXT_LIFE = 77, 78


def bench() -> Bench:
    return Bench(journal=True, policy=policy(tenant("acme", tokens_per_minute=60, burst_tokens=50)))


def tell(it: Bench, *costs: Spent, first: int = 1, life: int = LIFE) -> None:
    it.apply(PeerMessage(Expenses(costs, first), it.now_ns, life))
    it.step()


def cost(number: int, tokens: int) -> Spent:
    return Spent(Stream(number, 0), tokens, 0, 7, "acme", "standard")


def answers(it: Bench) -> list[Accounted]:
    return [each for each in it.turn.scheduler if isinstance(each, Accounted)]


def finished(it: Bench, name: str) -> int:
    it.generate(token_request(name, 3, max_tokens=8, credential="acme"))
    number = it.accepted().request
    it.text(number, 0, (5, 6), 0, "xx", end=End.STOP)
    it.step()
    it.send(ALICE, Acknowledge((name,)))
    it.step()
    it.read()
    return number


def test_the_scheduler_is_answered_once_it_is_written_down_and_not_before() -> None:
    it = bench()
    number = finished(it, "a")
    it.database.full = True
    it.generate(token_request("b", credential="acme"))
    tell(it, cost(number, 8))
    assert it.core.stuck and not answers(it)
    it.database.full = False
    it.pass_time(1.0)
    assert answers(it) == [Accounted(LIFE, 1)]
    it.step()
    assert not answers(it), "one answer is enough"


def test_what_is_told_again_to_a_next_life_counts_for_whom_it_was_though_he_is_forgotten() -> None:
    it = bench()
    number = finished(it, "a")
    it.die()
    it.ready()
    tell(it, cost(number, 8))
    assert it.used[ACME].computed_tokens == 8 and it.used[ACME].block_us == 7
    assert answers(it) == [Accounted(LIFE, 1)]


def test_what_an_earlier_life_has_written_down_is_answered_and_not_counted_again() -> None:
    it = bench()
    first, second = finished(it, "a"), finished(it, "b")
    tell(it, cost(first, 8))
    it.die()
    it.ready()
    tell(it, cost(first, 8), cost(second, 5))
    assert it.used[ACME].computed_tokens == 5
    assert answers(it) == [Accounted(LIFE, 2)]
    tell(it, cost(first, 8), cost(second, 5))
    assert not it.used
    assert answers(it) == [Accounted(LIFE, 2)]


def test_another_scheduler_counts_from_one_again() -> None:
    it = bench()
    first, second = finished(it, "a"), finished(it, "b")
    tell(it, cost(first, 8))
    it.apply(PeerJoined(Service.SCHEDULER))
    tell(it, cost(second, 5), life=NEXT_LIFE)
    assert it.used[ACME].computed_tokens == 5
    assert answers(it) == [Accounted(NEXT_LIFE, 1)]


def test_of_a_prompt_that_came_to_nothing_what_was_computed_is_charged_by_the_next_life_too() -> None:
    it = bench()
    it.generate(token_request("a", tokens=30, max_tokens=20, credential="acme"))
    number = it.accepted().request
    it.send(ALICE, Cancel("a"))
    it.step()
    it.die()
    it.ready()
    tell(it, cost(number, 16))
    assert (it.used[ACME].prompt_tokens, it.used[ACME].computed_tokens) == (16, 16)


def test_the_end_of_a_stream_that_was_to_begin_again_is_told_to_whoever_runs_its_earlier_attempt() -> None:
    it = bench()
    it.generate(token_request("a", max_tokens=8, credential="acme"))
    number = it.accepted().request
    it.text(number, 0, (5,), 0, "x")
    it.step()
    ((request, choice),) = it.core.state.unfinished()
    it.core.state.ledger.truncate(choice, 1, 0, 0)
    it.core.state.unsaved.truncated(choice)
    it.core.state.delivery.truncate(request, choice)
    it.core.state.scheduler.submit(request, choice)
    it.send(ALICE, Cancel("a"))
    it.step()
    assert [each.streams for each in it.turn.scheduler if isinstance(each, Ended)] == [(choice.stream,)]
