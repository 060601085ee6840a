"""Who leaves a request or a client: what is cancelled, and what its readers see."""

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from fakes.front_door import FrontDoor, Mail, words
from fakes.story import accepted, came, open_requests, run, until

from noria.client import (
    AsyncClient,
    Closed,
    Interrupted,
)
from noria.proto import frontdoor
from noria.proto.base import End
from noria.proto.frontdoor import (
    Acknowledge,
    Cancel,
    Generate,
)


async def _break(client: AsyncClient) -> None:
    async for _ in client.generate("hi", request_id="r"):
        break


async def _raise(client: AsyncClient) -> None:
    async def fail() -> None:
        async for _ in client.generate("hi", request_id="r"):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()


async def _close(client: AsyncClient) -> None:
    generation = client.generate("hi", request_id="r")
    assert await generation.next() is not None
    await generation.aclose()
    await generation.aclose()
    assert (await generation.result()).finish_reason == "cancelled"


async def _leave_block(client: AsyncClient) -> None:
    async with client.generate("hi", request_id="r") as generation:
        await generation.accepted()


async def _cancel_task(client: AsyncClient) -> None:
    task = asyncio.create_task(client.complete("hi", request_id="r"))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def _drop(client: AsyncClient) -> None:
    generation = client.generate("hi", request_id="r")
    await generation.accepted()
    del generation
    gc.collect()


@pytest.mark.parametrize("leave", [_break, _raise, _close, _leave_block, _cancel_task, _drop])
def test_leaving_a_generation_cancels_it(
    door: FrontDoor, leave: Callable[[AsyncClient], Coroutine[Any, Any, None]]
) -> None:
    def endless(door: FrontDoor, mail: Mail) -> None:
        if isinstance(mail.body, Generate):
            door.accept(mail)
            door.say(mail.client, mail.body.id, "a", "b")
        if isinstance(mail.body, Cancel):
            door.say(mail.client, "r", "c", start=2, characters=2)
            door.finish(mail.client, "r", 3, End.CANCELLED)

    door.script = endless

    async def story(client: AsyncClient) -> None:
        await leave(client)
        await came(door, Cancel)
        await came(door, Acknowledge)
        await until(lambda: open_requests(client) == 0)

    run(door, story)
    assert door.of(Cancel) == [Cancel("r")]


def test_leaving_after_the_end_cancels_nothing(door: FrontDoor) -> None:
    door.script = words("a", "b")

    async def story(client: AsyncClient) -> None:
        async for delta in client.generate("hi"):
            if delta.finish is not None:
                break
        await client.describe()

    run(door, story)
    assert not door.of(Cancel)


def test_what_was_cancelled_before_it_was_accepted_says_so(door: FrontDoor) -> None:
    async def story(client: AsyncClient) -> None:
        generation = client.generate("hi", request_id="r")
        await generation.aclose()
        with pytest.raises(Interrupted, match="before"):
            await generation.accepted()

    run(door, story)


def test_cancel_lets_the_reader_see_the_end(door: FrontDoor) -> None:
    async def story(client: AsyncClient) -> None:
        generation, name = await accepted(client, door)
        door.say(name, "r", "one")
        await generation.next()
        await generation.cancel()
        await came(door, Cancel)
        door.say(name, "r", " two", start=1, characters=3)
        door.finish(name, "r", 2, End.CANCELLED)
        whole = await generation.result()
        assert (whole.text, whole.finish_reason) == ("one two", "cancelled")

    run(door, story)


def test_news_of_a_stream_that_nobody_asked_for_is_cancelled(door: FrontDoor) -> None:
    async def story(client: AsyncClient) -> None:
        await client.describe()
        mail = await came(door, frontdoor.Describe)
        door.say(mail.client, "stray", "text")
        await came(door, Cancel)
        door.finish(mail.client, "stray", 1, End.CANCELLED)
        await came(door, Acknowledge)

    run(door, story)
    assert door.of(Cancel) == [Cancel("stray", left=True)]
    assert door.of(Acknowledge) == [Acknowledge(("stray",))]


def test_closing_the_client_cancels_what_is_open_and_ends_its_readers(door: FrontDoor) -> None:
    async def story(client: AsyncClient) -> None:
        generation = client.generate("hi", request_id="r")
        door.accept(await came(door, Generate))
        await generation.accepted()
        reader = asyncio.create_task(generation.result())
        await asyncio.sleep(0)
        await client.aclose()
        await client.aclose()
        with pytest.raises(Closed):
            await reader
        with pytest.raises(Closed):
            client.generate("again")
        await came(door, Cancel)

    run(door, story)


def test_an_idempotent_request_that_is_accepted_after_its_reader_left_is_not_cancelled(door: FrontDoor) -> None:
    async def story(client: AsyncClient) -> None:
        generation = client.generate("hi", request_id="once", keep=True)
        mail = await came(door, Generate)
        await generation.aclose()
        await came(door, Cancel)
        door.send(mail.client, frontdoor.Accepted("once", 1, 1, "model", 0))
        assert (await came(door, Cancel, 2)).body == Cancel("once", left=True)

    run(door, story)


def test_who_leaves_an_idempotent_request_says_so_and_forgets_it_at_once(door: FrontDoor) -> None:
    async def story(client: AsyncClient) -> None:
        generation = client.generate("hi", request_id="once", keep=True, credential="key")
        await came(door, Generate)
        await generation.aclose()
        assert (await came(door, Cancel)).body == Cancel("once", credential="key", left=True)
        assert open_requests(client) == 0
        assert generation.finished

    run(door, story)
