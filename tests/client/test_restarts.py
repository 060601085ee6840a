"""The client through restarts of the server: in every phase of a request, and when two of its lives are heard at once."""

import asyncio

import msgspec
import pytest
from fakes.front_door import FrontDoor, words
from fakes.story import QUICK, accepted, came, open_requests, restart, run

from noria.client import AsyncClient, Code, Interrupted
from noria.client.call import CallStatus
from noria.client.protocol import ClientProtocol
from noria.proto.base import End, Header
from noria.proto.frontdoor import Accepted, Acknowledge, Attach, Cancel, Delta, Generate, Have, Pong, Rejected, Updates


def test_a_request_that_was_not_answered_is_sent_again(door: FrontDoor) -> None:
    async def story(client: AsyncClient) -> None:
        generation = client.generate("hi", request_id="r")
        await came(door, Generate)
        door.script = words("a")
        await restart(door)
        assert (await generation.result()).text == "a"

    run(door, story)


def test_an_open_stream_is_attached_with_what_it_has_and_goes_on(door: FrontDoor) -> None:
    async def story(client: AsyncClient) -> None:
        generation, name = await accepted(client, door)
        door.say(name, "r", "a", "b")
        await generation.next()
        await restart(door)
        mail = await came(door, Attach)
        assert mail.body.have[0].ids == 2
        door.send(name, Accepted("r", 1, 7, "fake", 42))
        door.say(name, "r", "c", start=2, characters=2)
        door.finish(name, "r", 3)
        assert (await generation.result()).text == "abc"
        assert door.of(Generate) == []

    run(door, story)


def test_a_server_that_is_not_ready_yet_is_waited_for_by_who_was_accepted_once(door: FrontDoor) -> None:
    async def story(client: AsyncClient) -> None:
        generation = client.generate("hi", request_id="r")
        door.accept(await came(door, Generate))
        await generation.accepted()
        await restart(door)
        mail = await came(door, Attach)
        door.send(mail.client, Rejected("r", Code.NOT_FOUND, "unknown"))
        mail = await came(door, Generate)
        for count in range(2, 4):
            door.send(mail.client, Rejected("r", Code.NOT_READY, "not ready", "", 20))
            mail = await came(door, Generate, count)
        door.accept(mail)
        door.say(mail.client, "r", "a")
        door.finish(mail.client, "r", 1)
        assert (await generation.result()).text == "a"

    run(door, story)


def test_a_request_that_is_being_cancelled_is_cancelled_in_the_next_life(door: FrontDoor) -> None:
    async def story(client: AsyncClient) -> None:
        generation, name = await accepted(client, door)
        door.say(name, "r", "a")
        await generation.next()
        await generation.cancel()
        await came(door, Cancel)
        await restart(door)
        await came(door, Cancel)
        await came(door, Attach)
        door.finish(name, "r", 1, End.CANCELLED)
        assert (await generation.result()).finish_reason == "cancelled"

    run(door, story)


@pytest.mark.parametrize("known", [True, False])
def test_the_end_of_a_request_that_was_left_is_asked_for_in_the_next_life(door: FrontDoor, known: bool) -> None:
    async def story(client: AsyncClient) -> None:
        generation, name = await accepted(client, door)
        await generation.accepted()
        generation.leave()
        await came(door, Cancel)
        await restart(door)
        await came(door, Cancel)
        await came(door, Attach)
        if known:
            door.finish(name, "r", 0, End.CANCELLED)
            await came(door, Acknowledge)
        else:
            door.send(name, Rejected("r", Code.NOT_FOUND, "unknown"))
        while open_requests(client):
            await asyncio.sleep(0.005)

    run(door, story)


class Talk:
    """A client protocol whose messages are kept, and a server's mail."""

    def __init__(self) -> None:
        self.said: list[msgspec.Struct] = []
        self.protocol = ClientProtocol(QUICK, self._send)

    def _send(self, body: msgspec.Struct, traceparent: str) -> bool:
        self.said.append(body)
        return True

    def hear(self, body: msgspec.Struct, incarnation: int, now_s: float) -> None:
        self.protocol.receive(Header(type(body).__name__, "admission", incarnation), body, now_s)


def delta(start: int, *ids: int) -> Updates:
    return Updates((Delta("r", 0, 0, start, ids, start, "x" * len(ids)),))


def test_of_two_lives_the_one_that_goes_on_is_heard_though_the_dead_one_was_heard_last() -> None:
    talk = Talk()
    call = talk.protocol.begin(Generate("r", prompt="hi"), "", 0.0)
    talk.hear(Accepted("r", 1, 3, "fake", 5), 22, 1.0)
    talk.hear(Pong(), 11, 1.01)  # written before it died, delivered after its successor's first words
    talk.hear(delta(0, 7), 22, 1.05)
    assert call.empty, "for a moment the two cannot be told apart"
    talk.said.clear()
    talk.hear(Pong(), 22, 1.5)
    assert talk.said == [Attach("r", (Have(0),))]
    talk.hear(delta(0, 7), 22, 1.6)
    assert not call.empty


def test_an_answer_that_goes_on_otherwise_than_it_began_is_not_stitched_together() -> None:
    talk = Talk()
    call = talk.protocol.begin(Generate("r", prompt="hi"), "", 0.0)
    talk.hear(Accepted("r", 1, 3, "fake", 5), 1, 1.0)
    talk.hear(delta(0, 7, 8, 9), 1, 1.1)
    talk.hear(delta(1, 8, 9, 10), 2, 2.0)
    assert call.phase is CallStatus.OPEN
    talk.hear(delta(2, 99, 10, 11), 2, 2.1)
    assert call.phase is CallStatus.OVER and isinstance(call.error, Interrupted)
    assert isinstance(talk.said[-1], Cancel)
