"""Output and ends of streams as the peers send them, and as clients and peers get them."""

from collections.abc import Sequence

import pytest
from fakes.admission_bench import ALICE, BOB, SECOND, Bench, deltas, finishes, token_request

from noria.proto.base import End, Ended, Service, Stream
from noria.proto.frontdoor import Accepted, Acknowledge, Attach, Cancel, Code, Have, Ping, Updates
from noria.proto.output import Gap, Open, Resend, TextRun, Texts, Unknown
from noria.proto.scheduling import Reclaimed, Reclaims, Submit, Withdraw
from noria.services.admission.core.ledger.request import OutputText, RequestKey
from noria.services.admission.core.state.events import PeerJoined, PeerLost

STREAM = Stream(100, 0)


def begun(**changes: int) -> Bench:
    bench = Bench(**changes)
    bench.generate(token_request())
    bench.read()
    return bench


def test_a_stream_is_delivered_in_order_and_finished_with_usage_and_timings() -> None:
    bench = begun()
    bench.now_ns += 2 * SECOND
    bench.text(100, 0, (50,), 0, "a")
    bench.step()
    bench.now_ns += SECOND
    bench.from_peer(Texts((TextRun(STREAM, 0, 1, (51, 9), 1, "b", End.STOP, "9", "", 2, 1500),)))
    bench.step()
    got = bench.read()
    assert [(each.start, each.ids, each.characters, each.text) for each in deltas(got)] == [
        (0, (50,), 0, "a"),
        (1, (51, 9), 1, "b"),
    ]
    (finished,) = finishes(got)
    assert (finished.end, finished.prompt_tokens, finished.output_tokens) == (End.STOP, 3, 3)
    assert (finished.matched, finished.cached_tokens) == ("9", 2)
    assert (finished.timings.queue_ms, finished.timings.first_token_ms, finished.timings.total_ms) == (1.5, 2000, 3000)
    assert bench.turn.scheduler == [Ended((STREAM,))]
    assert bench.turn.detokenizer == [Ended((STREAM,))]
    assert bench.idle()


def test_a_tenant_is_a_salt_of_its_own() -> None:
    bench = Bench()
    bench.send(ALICE, token_request())
    post = bench.core.state.scheduler
    ((request, choice),) = post.submissions.values()
    request.key = RequestKey("acme", request.key.id)
    (submit,) = post.take(bench.now_ns)
    assert isinstance(submit, Submit)
    assert [(each.tenant, each.salt) for each in submit.submissions] == [("acme", b"acme")]
    assert choice.stream == STREAM


def test_what_is_known_is_dropped_and_the_new_part_kept() -> None:
    bench = begun()
    bench.text(100, 0, (50, 51), 0, "ab")
    bench.text(100, 0, (50, 51), 0, "ab")
    bench.text(100, 1, (51, 52), 1, "bc")
    bench.step()
    (delta,) = deltas(bench.read())
    assert (delta.ids, delta.text) == ((50, 51, 52), "abc")


def test_a_hole_in_the_ids_is_asked_for_once_per_turn_and_nothing_is_taken() -> None:
    bench = begun()
    bench.text(100, 0, (50,), 0, "a")
    bench.text(100, 2, (52,), 2, "c")
    bench.text(100, 3, (53,), 3, "d")
    bench.step()
    assert bench.turn.detokenizer == [Resend((Gap(STREAM, 1),))]
    bench.text(100, 1, (51, 52, 53), 1, "bcd")
    bench.step()
    assert "".join(each.text for each in deltas(bench.read())) == "abcd"


def test_a_hole_in_the_text_alone_opens_the_stream_again() -> None:
    bench = begun()
    bench.text(100, 0, (50,), 3, "d")
    bench.step()
    assert bench.opened() == [STREAM]
    assert deltas(bench.read()) == []


def test_a_higher_attempt_takes_the_stream_back_and_tells_the_client() -> None:
    bench = begun()
    bench.text(100, 0, (50, 51, 52), 0, "abc")
    bench.step()
    bench.read()
    bench.from_peer(Texts((TextRun(STREAM, 1, 1, (61,), 1, "B"),)))
    bench.from_peer(Texts((TextRun(STREAM, 0, 3, (53,), 3, "d"),)))
    bench.step()
    (delta,) = deltas(bench.read())
    assert (delta.attempt, delta.start, delta.ids, delta.characters, delta.text) == (1, 1, (61,), 1, "B")


def test_the_first_end_wins() -> None:
    bench = begun()
    bench.text(100, 0, (50,), 0, "a", end=End.LENGTH)
    bench.send(ALICE, Cancel("r1"))
    bench.text(100, 1, (51,), 1, "b", end=End.STOP)
    bench.step()
    got = bench.read()
    assert [each.end for each in finishes(got)] == [End.LENGTH]
    assert finishes(got)[0].output_tokens == 1
    assert bench.turn.scheduler == [Ended((STREAM,))]


@pytest.mark.parametrize("tokens", [0, 1])
def test_a_cancelled_stream_ends_at_once_whatever_comes_later(tokens: int) -> None:
    bench = begun()
    bench.text(100, 0, (50,) * tokens, 0, "a" * tokens)
    bench.send(ALICE, Cancel("r1"))
    bench.text(100, tokens, (51,), tokens, "b", end=End.STOP)
    bench.step()
    (finished,) = finishes(bench.read())
    assert (finished.end, finished.output_tokens) == (End.CANCELLED, tokens)
    assert bench.turn.scheduler == [Withdraw((STREAM,)), Ended((STREAM,))]
    assert bench.turn.detokenizer == [Ended((STREAM,))]


def test_one_choice_may_be_cancelled_while_its_sibling_runs_on() -> None:
    bench = Bench()
    bench.generate(token_request(n=2))
    bench.read()
    bench.send(ALICE, Cancel("r1", 1))
    bench.send(ALICE, Cancel("r1", 7))
    bench.step()
    assert [(each.index, each.end) for each in finishes(bench.read())] == [(1, End.CANCELLED)]
    bench.text(100, 0, (50,), 0, "a", end=End.STOP)
    bench.step()
    assert [(each.index, each.end) for each in finishes(bench.read())] == [(0, End.STOP)]
    assert bench.idle()


def test_the_newest_attachment_owns_the_streams() -> None:
    bench = begun()
    bench.text(100, 0, (50, 51), 0, "ab")
    bench.step()
    bench.read()
    bench.send(BOB, Attach("r1", (Have(0, 0, 1, 1),)))
    bench.step()
    got = bench.read(BOB)
    assert isinstance(got[0], Accepted)
    assert [(each.start, each.text) for each in deltas(got)] == [(1, "b")]
    bench.send(ALICE, Cancel("r1"))
    bench.text(100, 2, (52,), 2, "c")
    bench.step()
    assert bench.read(ALICE) == []
    assert [each.text for each in deltas(bench.read(BOB))] == ["c"]


@pytest.mark.parametrize(
    "have", [(Have(0, 0, 99, 99),), (Have(0, 0, -5, -5),), (Have(5),), (Have(-1),), (Have(0, 9, 1, 1),), ()]
)
def test_nonsense_about_what_a_client_has_does_no_harm(have: tuple[Have, ...]) -> None:
    bench = begun()
    bench.text(100, 0, (50, 51), 0, "ab")
    bench.send(BOB, Attach("r1", have))
    bench.text(100, 2, (52,), 2, "c", end=End.STOP)
    bench.step()
    assert [each.output_tokens for each in finishes(bench.read(BOB))] == [3]


def test_an_ended_request_can_be_fetched_until_it_is_acknowledged() -> None:
    bench = begun()
    bench.text(100, 0, (50,), 0, "a", end=End.STOP)
    bench.step()
    bench.read()
    bench.send(ALICE, Attach("r1"))
    bench.step()
    got = bench.read()
    assert [each.text for each in deltas(got)] == ["a"]
    assert len(finishes(got)) == 1
    bench.send(ALICE, Acknowledge(("r1",)))
    bench.send(ALICE, Attach("r1"))
    bench.step()
    assert bench.rejection().code is Code.NOT_FOUND
    assert bench.core.snapshot()["retained"] == 0


def test_acknowledging_what_has_not_ended_changes_nothing() -> None:
    bench = begun()
    bench.send(ALICE, Acknowledge(("r1",)))
    assert bench.core.snapshot()["requests"] == 1


def test_an_unacknowledged_end_is_forgotten_after_the_retention_time() -> None:
    bench = begun()
    bench.text(100, 0, (50,), 0, "a", end=End.STOP)
    bench.step()
    bench.pass_time(59)
    assert bench.core.snapshot()["retained"] == 1
    bench.pass_time(2)
    assert bench.core.snapshot()["retained"] == 0


def test_a_slow_reader_gets_everything_later_in_few_messages() -> None:
    bench = begun()
    bench.deaf.add(ALICE)
    for position in range(500):
        bench.text(100, position, (position,), position, chr(97 + position % 26))
        bench.now_ns += SECOND // 1000
        bench.step()
    assert bench.read() == []
    bench.deaf.clear()
    bench.pass_time(1)
    got = bench.read()
    assert len(got) == 1
    assert deltas(got)[0].ids == tuple(range(500))
    assert deltas(got)[0].text == "".join(chr(97 + position % 26) for position in range(500))


def test_a_long_backlog_is_split_into_bounded_messages() -> None:
    bench = begun(update_tokens_max=100)
    bench.deaf.add(ALICE)
    bench.text(100, 0, range(250), 0, "x" * 250, end=End.LENGTH)
    bench.step()
    bench.deaf.clear()
    bench.pass_time(1)
    got = [message for message in bench.read() if isinstance(message, Updates)]
    assert [len(each.deltas[0].ids) for each in got] == [100, 100, 50]
    assert "".join(each.text for each in deltas(got)) == "x" * 250
    assert [len(each.finished) for each in got] == [0, 0, 1]


def test_a_reader_that_is_alive_but_slow_keeps_its_ended_streams_past_retention() -> None:
    bench = begun()
    bench.deaf.add(ALICE)
    bench.text(100, 0, (50,), 0, "a", end=End.STOP)
    for _ in range(20):
        bench.send(ALICE, Ping())
        bench.pass_time(10)
    bench.deaf.clear()
    bench.pass_time(1)
    assert len(finishes(bench.read())) == 1


def test_refusals_for_a_client_that_does_not_read_are_bounded() -> None:
    bench = Bench(answers_max=3)
    bench.deaf.add(ALICE)
    for _ in range(10):
        bench.generate(token_request(tokens=64))
    bench.deaf.clear()
    bench.pass_time(1)
    assert len(bench.read()) == 3
    assert bench.core.snapshot()["answers_overflowed"] == 7


def test_a_silent_clients_requests_are_cancelled() -> None:
    bench = begun()
    bench.pass_time(14)
    assert bench.turn.scheduler == []
    bench.pass_time(2)
    assert bench.turn.scheduler == [Withdraw((STREAM,)), Ended((STREAM,))]
    assert bench.turn.log_entries[0].detail == "the client fell silent"  # type: ignore[union-attr]  # an EndedLogEntry
    assert bench.idle()
    assert bench.core.snapshot()["clients"] == 0


def test_a_ping_keeps_a_client_alive() -> None:
    bench = begun()
    for _ in range(5):
        bench.pass_time(10)
        bench.send(ALICE, Ping())
    assert bench.core.snapshot()["requests"] == 1


def test_a_clients_next_life_may_come_back_for_what_the_last_one_began() -> None:
    bench = begun()
    bench.incarnations[ALICE] = 2
    bench.send(ALICE, Ping())
    bench.text(100, 0, (50,), 0, "a")
    bench.step()
    assert deltas(bench.read()) == []
    bench.send(ALICE, Attach("r1"))
    bench.step()
    assert [each.text for each in deltas(bench.read())] == ["a"]


def test_what_a_clients_last_life_left_is_cancelled_when_nobody_comes() -> None:
    bench = begun()
    bench.incarnations[ALICE] = 2
    bench.send(ALICE, Ping())
    bench.pass_time(10)
    bench.send(ALICE, Ping())
    bench.pass_time(6)
    assert bench.idle()


@pytest.mark.parametrize(
    ("ttl", "tokens", "ended"),
    [
        ({"ttl_ms": 2000}, 1, True),
        ({"ttl_ms": 2000}, 0, True),
        ({"ttl_first_ms": 2000}, 0, True),
        ({"ttl_first_ms": 2000}, 1, False),
        ({"ttl_first_ms": 2000, "ttl_ms": 9000}, 1, False),
    ],
)
def test_a_deadline_ends_a_stream_as_deadline(ttl: dict[str, int], tokens: int, ended: bool) -> None:
    bench = Bench()
    bench.generate(token_request(**ttl))
    bench.text(100, 0, (50,) * tokens, 0, "a" * tokens)
    bench.pass_time(1.9)
    assert finishes(bench.read()) == []
    bench.pass_time(0.2)
    assert [each.end for each in finishes(bench.read())] == [End.DEADLINE] * ended
    if ended:
        assert bench.turn.scheduler == [Withdraw((STREAM,), End.DEADLINE), Ended((STREAM,))]


def test_a_deadline_over_before_tokenization_refuses_the_request() -> None:
    bench = Bench()
    body = token_request(ttl_ms=1000)
    bench.generate(type(body)("r1", prompt="x", ttl_ms=1000))
    bench.pass_time(2)
    assert bench.rejection().code is Code.DEADLINE
    assert bench.turn.abandoned == [100]


def test_what_is_left_of_a_deadline_travels_with_a_submission() -> None:
    bench = Bench()
    bench.generate(token_request(ttl_ms=5000, ttl_first_ms=4000))
    bench.text(100, 0, (50,), 0, "a")
    bench.pass_time(1)
    bench.ready()
    (submission,) = bench.submissions()
    assert (submission.ttl_ms, submission.ttl_first_ms, submission.seniority_ms) == (4000, None, 1000)
    assert submission.output_ids == (50,)


def test_timers_of_finished_requests_do_not_pile_up() -> None:
    bench = Bench()
    for number in range(1090):
        name = f"r{number}"
        bench.send(ALICE, token_request(name, ttl_ms=2**31))
        bench.send(ALICE, Cancel(name))
        bench.send(ALICE, Acknowledge((name,)))
        bench.step()
    assert bench.core.snapshot()["timers"] < 1030  # type: ignore[operator]  # a count


def test_a_new_detokenizer_is_told_of_every_unfinished_stream() -> None:
    bench = begun()
    bench.text(100, 0, (50, 51), 0, "ab")
    bench.apply(PeerLost(Service.DETOKENIZER))
    bench.ready()
    (opening,) = next(message for message in bench.turn.detokenizer if isinstance(message, Open)).openings
    assert (opening.output_ids, opening.characters, opening.prompt_tail) == ((50, 51), 2, (10, 11, 12))


def test_whoever_joins_is_told_once_which_streams_are_all_there_are() -> None:
    bench = Bench(ready=False)
    bench.ready()
    assert bench.turn.scheduler == [Submit((), complete=True)]
    assert bench.turn.detokenizer == [Open((), complete=True)]
    bench.generate(token_request())
    assert [each.complete for each in bench.turn.scheduler if isinstance(each, Submit)] == [False]
    assert [each.complete for each in bench.turn.detokenizer if isinstance(each, Open)] == [False]


def test_that_all_has_been_named_is_said_again_when_it_was_not_taken_and_only_after_all() -> None:
    bench = begun(batch_tokens_max=3)
    bench.generate(token_request("r2"))
    bench.apply(PeerLost(Service.SCHEDULER))
    bench.apply(PeerJoined(Service.SCHEDULER))
    turn = bench.core.take(bench.now_ns)
    bench.core.restore(turn.scheduler, [])
    again = bench.core.take(bench.now_ns).scheduler
    assert again == turn.scheduler
    named = [([each.stream.request for each in message.submissions], message.complete) for message in submits(again)]
    assert named == [([100], False), ([101], False), ([], True)]


def submits(messages: Sequence[object]) -> list[Submit]:
    return [message for message in messages if isinstance(message, Submit)]


def test_text_of_an_attempt_that_was_given_up_is_dropped() -> None:
    bench = begun()
    bench.from_peer(Texts((TextRun(STREAM, 1, 0, (60,), 0, "new"),)))
    bench.from_peer(Texts((TextRun(STREAM, 0, 1, (51,), 3, "old"),)))
    bench.step()
    assert [(each.attempt, each.ids, each.text) for each in deltas(bench.read())] == [(1, (60,), "new")]


def test_unknown_streams_are_opened_again_and_dead_ones_ended_again() -> None:
    bench = begun()
    bench.from_peer(Unknown((STREAM, Stream(7, 0), Stream(100, 9))))
    bench.step()
    assert bench.opened() == [STREAM]
    assert bench.turn.scheduler == [Ended((Stream(7, 0), Stream(100, 9)))]


def test_text_of_unknown_streams_is_ignored() -> None:
    bench = begun()
    bench.text(7, 0, (1,), 0, "x")
    bench.text(100, 0, (1,), 0, "x", choice=5)
    bench.text(100, 0, (1,), 0, "x", choice=-1)
    bench.step()
    assert bench.read() == []


def test_what_a_full_outbox_did_not_take_is_given_again_in_order() -> None:
    bench = begun()
    bench.send(ALICE, token_request("a"))
    bench.send(ALICE, Cancel("r1"))
    turn = bench.core.take(bench.now_ns)
    bench.core.restore(turn.scheduler, turn.detokenizer)
    bench.core.check()
    again = bench.core.take(bench.now_ns)
    assert again.scheduler == turn.scheduler
    assert again.detokenizer == turn.detokenizer
    bench.capacity(submitted=2, requests=1)
    bench.generate(token_request("b"))
    assert bench.submissions()


def test_reclaims_are_counted() -> None:
    bench = Bench()
    bench.from_peer(Reclaims((Reclaimed(STREAM, 3, 2, 100), Reclaimed(STREAM, 1, 0, 50), Reclaimed(STREAM, 1, 99, 50))))
    reclaims = bench.core.snapshot()["reclaims"]
    assert isinstance(reclaims, dict)
    assert (reclaims["count"], reclaims["blocks"], reclaims["steps_max"]) == (3, 5, 99)
    assert reclaims["steps"] == [1, 0, 1, 0, 1]


def test_the_terms_of_the_conservation_law_add_up() -> None:
    bench = Bench()
    for name, ttl in (("a", {}), ("b", {}), ("c", {"ttl_ms": 1000}), ("d", {}), ("e", {})):
        bench.generate(token_request(name, **ttl))
    bench.text(100, 0, (50,), 0, "x", end=End.STOP)
    bench.send(ALICE, Cancel("b"))
    bench.pass_time(2)
    bench.text(103, 0, (), 0, "", end=End.ERROR)
    totals = bench.core.snapshot()["totals"]
    assert isinstance(totals, dict)
    ends = [totals[key] for key in ("finished", "cancelled", "expired", "shed", "failed", "in_flight")]
    assert ends == [1, 1, 1, 0, 1, 1]
    assert totals["accepted"] == sum(ends)


def test_a_text_reads_the_same_however_it_was_built() -> None:
    text = OutputText()
    whole = ""
    for position in range(1000):
        piece = "ab"[: position % 3]
        text.append(piece)
        whole += piece
        assert text.since(len(whole) - 1) == whole[-1:]
    assert text.length == len(whole)
    for start in (0, 1, 500, len(whole), len(whole) + 5):
        assert text.since(start) == whole[start:]
    text.truncate(10)
    assert text.since(0) == whole[:10]
