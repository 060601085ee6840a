"""Streams that the scheduler suspects are kept for its successor, on disk too, and sent with the submission."""

from fakes.admission_bench import ALICE, Bench, token_request

from noria.proto.base import End, Service, Stream
from noria.proto.frontdoor import Cancel
from noria.proto.scheduling import Doubt, Suspect, Suspected
from noria.services.admission.core.state.events import PeerJoined, PeerLost

DOUBT = Doubt(group=3, failures_alone=1, output_tokens=2)


def two_streams(it: Bench) -> tuple[Stream, Stream]:
    it.generate(token_request("a", max_tokens=8))
    it.generate(token_request("b", max_tokens=8))
    first, second = it.read()
    return Stream(first.request, 0), Stream(second.request, 0)  # type: ignore[union-attr]  # both were accepted


def rejoined(it: Bench) -> dict[Stream, Doubt | None]:
    """What the next scheduler hears of each stream."""
    it.apply(PeerLost(Service.SCHEDULER))
    it.step()
    it.apply(PeerJoined(Service.SCHEDULER))
    it.step()
    return {each.stream: each.doubt for each in it.submissions()}


def test_the_next_scheduler_hears_whom_the_last_one_suspected() -> None:
    it = Bench()
    one, other = two_streams(it)
    it.from_peer(Suspected((Suspect(one, DOUBT),)))
    assert rejoined(it) == {one: DOUBT, other: None}
    assert rejoined(it) == {one: DOUBT, other: None}, "it may die before it has said anything"


def test_the_scheduler_says_who_is_suspected_and_whoever_it_does_not_name_is_not() -> None:
    it = Bench()
    one, other = two_streams(it)
    it.from_peer(Suspected((Suspect(one, DOUBT),)))
    it.from_peer(Suspected((Suspect(other, DOUBT),)))
    assert rejoined(it) == {one: None, other: DOUBT}
    it.from_peer(Suspected(()))
    assert rejoined(it) == {one: None, other: None}


def test_suspicion_survives_admission_and_scheduler_together() -> None:
    it = Bench(journal=True)
    one, other = two_streams(it)
    it.from_peer(Suspected((Suspect(one, DOUBT),)))
    it.step()
    for _ in range(2):
        it.die()
        it.ready()
        assert {each.stream: each.doubt for each in it.submissions()} == {one: DOUBT, other: None}
    it.from_peer(Suspected(()))
    it.step()
    it.die()
    it.ready()
    assert {each.stream: each.doubt for each in it.submissions()} == {one: None, other: None}


def test_of_streams_that_have_ended_nothing_is_kept() -> None:
    it = Bench(journal=True)
    one, other = two_streams(it)
    it.send(ALICE, Cancel("a"))
    it.from_peer(Suspected((Suspect(one, DOUBT), Suspect(other, DOUBT))))
    it.step()
    assert it.database.count("doubts") == 1
    it.text(other.request, 0, (5,), 0, "x", end=End.STOP)
    it.from_peer(Suspected(()))
    it.step()
    assert it.database.count("doubts") == 0
