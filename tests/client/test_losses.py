"""What is lost on the way, servers that fall silent or forget, and how the client asks again."""

import asyncio
from pathlib import Path

import pytest
from fakes.front_door import FrontDoor, Mail, words
from fakes.story import accepted, came, run

from noria.client import (
    AsyncClient,
    ClientTimeouts,
    Code,
    Interrupted,
    Refused,
    Unreachable,
)
from noria.proto.frontdoor import (
    Accepted,
    Attach,
    Generate,
    Have,
    Ping,
    Rejected,
)


def test_known_news_is_dropped_and_a_gap_is_asked_for(door: FrontDoor) -> None:
    async def story(client: AsyncClient) -> None:
        generation, name = await accepted(client, door)
        door.say(name, "r", "ab", "cd")
        door.say(name, "r", "ab", "cd")
        door.say(name, "r", "cd", "ef", start=1, characters=2)
        door.say(name, "r", "later", start=5, characters=20)
        attach = await came(door, Attach)
        assert isinstance(attach.body, Attach)
        assert attach.body.have == (Have(0, 0, 3, 6),)
        door.finish(name, "r", 4)  # its last token is missing still
        door.say(name, "r", "gh", start=3, characters=6)
        door.finish(name, "r", 4)
        whole = await generation.result()
        assert whole.text == "abcdefgh"
        assert whole.choices[0].token_ids == (100, 101, 102, 103)

    run(door, story)


def test_a_higher_attempt_truncates_what_was_there(door: FrontDoor) -> None:
    async def story(client: AsyncClient) -> None:
        generation, name = await accepted(client, door)
        door.say(name, "r", "ab", "cd", "ef")
        first = await generation.next()
        assert first is not None
        door.say(name, "r", "XY", attempt=1, start=1, characters=2)
        door.say(name, "r", "old", attempt=0, start=3, characters=6)
        second = await generation.next()
        assert second is not None
        assert (second.text, second.characters, second.start, second.attempt) == ("XY", 2, 1, 1)
        door.finish(name, "r", 2)
        assert (await generation.result()).text == "abXY"

    run(door, story)


def test_requests_made_before_the_server_is_there_are_sent_when_it_comes(tmp_path: Path) -> None:
    door = FrontDoor(f"ipc://{tmp_path}/door.sock", words("late"))

    async def story(client: AsyncClient) -> None:
        generation = client.generate("hi")
        await asyncio.sleep(0.05)
        await asyncio.to_thread(door.start)
        assert (await generation.result()).text == "late"

    run(door, story)
    door.stop()


def test_open_streams_attach_again_when_the_server_is_another(door: FrontDoor) -> None:
    async def story(client: AsyncClient) -> None:
        generation, name = await accepted(client, door)
        door.say(name, "r", "ab", "cd")
        assert await generation.next() is not None

        def remembers(door: FrontDoor, mail: Mail) -> None:
            if isinstance(mail.body, Attach):
                door.send(mail.client, Accepted("r", 1, 7, "fake", 42))
                door.say(mail.client, "r", "cd", "ef", start=1, characters=2)
                door.finish(mail.client, "r", 3)

        await asyncio.to_thread(door.restart, remembers)
        assert (await generation.result()).text == "abcdef"
        assert door.of(Attach)[0].have == (Have(0, 0, 2, 4),)

    run(door, story)


def test_a_request_that_the_new_server_does_not_know_is_made_again_when_nothing_was_received(door: FrontDoor) -> None:
    async def story(client: AsyncClient) -> None:
        generation, _ = await accepted(client, door)
        await generation.accepted()
        refusals = [Code.NOT_READY]

        def forgetful(door: FrontDoor, mail: Mail) -> None:
            if isinstance(mail.body, Attach):
                door.send(mail.client, Rejected("r", Code.NOT_FOUND, "unknown"))
            if isinstance(mail.body, Generate) and refusals:
                door.send(mail.client, Rejected("r", refusals.pop(), "starting", retry_after_ms=50))
            elif isinstance(mail.body, Generate):
                words("again")(door, mail)

        await asyncio.to_thread(door.restart, forgetful)
        assert (await generation.result()).text == "again"
        assert {each.id for each in door.of(Generate)} == {"r"}

    run(door, story)


def test_a_server_that_says_when_it_will_be_ready_is_waited_for_unless_that_is_too_long(door: FrontDoor) -> None:
    async def story(client: AsyncClient) -> None:
        waits = [100, 100]

        def restarting(door: FrontDoor, mail: Mail) -> None:
            if isinstance(mail.body, Generate) and waits:
                door.send(mail.client, Rejected(mail.body.id, Code.NOT_READY, "wait", retry_after_ms=waits.pop()))
            elif isinstance(mail.body, Generate):
                words("at last")(door, mail)

        door.script = restarting
        assert (await client.complete("hi")).text == "at last"
        waits.append(60_000)
        with pytest.raises(Refused):
            await client.complete("hi")

    run(door, story)


def test_an_answer_that_the_new_server_does_not_know_is_interrupted(door: FrontDoor) -> None:
    async def story(client: AsyncClient) -> None:
        generation, name = await accepted(client, door)
        door.say(name, "r", "ab")
        assert await generation.next() is not None

        def forgetful(door: FrontDoor, mail: Mail) -> None:
            if isinstance(mail.body, Attach):
                door.send(mail.client, Rejected("r", Code.NOT_FOUND, "unknown"))

        await asyncio.to_thread(door.restart, forgetful)
        with pytest.raises(Interrupted):
            await generation.result()

    run(door, story)


def test_a_lost_message_is_asked_for_after_a_silence(door: FrontDoor) -> None:
    async def story(client: AsyncClient) -> None:
        generation, name = await accepted(client, door)
        await came(door, Attach)
        door.say(name, "r", "found")
        door.finish(name, "r", 1)
        assert (await generation.result()).text == "found"
        assert door.of(Ping)

    run(door, story)


def test_an_unanswered_request_is_repeated_and_then_unreachable(door: FrontDoor) -> None:
    door.lively = False

    async def story(client: AsyncClient) -> None:
        with pytest.raises(Unreachable, match="no answer"):
            await client.complete("hi", request_id="r")
        with pytest.raises(Unreachable, match="nothing answered"):
            await client.describe(timeout_s=0.05)

    run(door, story, ClientTimeouts(accept_s=2, ping_s=0.1, resend_s=0.1, resend_max_s=0.1))
    sent = door.of(Generate)
    assert len(sent) > 1
    assert len(set(map(repr, sent))) == 1


def test_an_answer_that_stops_coming_is_unreachable_after_what_came_has_been_read(door: FrontDoor) -> None:
    async def story(client: AsyncClient) -> None:
        generation, name = await accepted(client, door)
        door.say(name, "r", "ab")
        await generation.accepted()
        await client.describe()
        await asyncio.to_thread(door.stop)
        delta = await generation.next()
        assert delta is not None
        assert delta.text == "ab"
        with pytest.raises(Unreachable, match="stopped"):
            await generation.result()

    run(door, story, ClientTimeouts(ping_s=0.1, silence_s=0.1, reconnect_s=2, resend_s=0.1))
