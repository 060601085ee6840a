"""Requests in the background: they need no reader, and wait for one after their end."""

import pytest
from fakes.admission_bench import ALICE, BOB, Bench, deltas, finishes, token_request

from noria.proto.base import End
from noria.proto.frontdoor import Acknowledge, Attach, Cancel, Generate


def begun(*, background: bool = True, **changes: int) -> Bench:
    bench = Bench(**changes)
    bench.generate(token_request(background=background))
    bench.read()
    return bench


def test_a_request_in_the_background_outlives_the_silence_of_its_client() -> None:
    bench = begun()
    bench.pass_time(100)
    bench.text(100, 0, (50,), 0, "a")
    bench.send(BOB, Attach("r1"))
    bench.text(100, 1, (51,), 1, "b", end=End.STOP)
    bench.step()
    got = bench.read(BOB)
    assert "".join(each.text for each in deltas(got)) == "ab"
    assert finishes(got)[0].end is End.STOP
    assert bench.idle()


def test_any_other_request_does_not() -> None:
    bench = begun(background=False)
    bench.pass_time(100)
    assert bench.core.snapshot()["totals"] == bench.core.state.totals.as_counts(0)
    assert bench.core.state.totals.ended[End.CANCELLED] == 1


def test_leaving_it_lets_it_go_on_and_cancelling_it_ends_it() -> None:
    bench = begun()
    bench.send(ALICE, Cancel("r1", left=True))
    bench.pass_time(100)
    assert bench.core.snapshot()["unread"] == 1
    bench.send(BOB, Cancel("r1"))
    bench.step()
    assert bench.core.state.totals.ended[End.CANCELLED] == 1
    assert bench.idle() and bench.core.snapshot()["unread"] == 0


def test_a_prompt_that_is_being_tokenized_goes_on_without_its_client() -> None:
    bench = Bench()
    bench.generate(Generate("r1", prompt="hello", background=True))
    bench.pass_time(100)
    bench.tokenized(100)
    bench.step()
    assert bench.core.state.ledger.live.keys() == {100}


@pytest.mark.parametrize("retention_s", [20, 60])
def test_its_answer_is_kept_for_the_retention_time_whoever_has_acknowledged_it(retention_s: int) -> None:
    bench = begun(retention_ns=retention_s * 10**9)
    bench.text(100, 0, (50,), 0, "a", end=End.STOP)
    bench.step()
    bench.send(ALICE, Acknowledge(("r1",)))
    bench.pass_time(retention_s - 1)
    bench.send(BOB, Attach("r1"))
    bench.step()
    assert "".join(each.text for each in deltas(bench.read(BOB))) == "a"
    bench.pass_time(2)
    assert bench.core.state.ledger.requests == {}


def test_those_that_nobody_reads_count_among_the_unfinished() -> None:
    bench = Bench(requests_max=2)
    for name in ("r1", "r2"):
        bench.generate(token_request(name, background=True))
        bench.send(ALICE, Cancel(name, left=True))
    bench.read()
    bench.generate(token_request("r3"))
    assert "unfinished" in bench.rejection().reason
