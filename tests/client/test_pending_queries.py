"""Questions that are no requests: what is served, what would become of a request, whose a key is."""

import asyncio

import pytest
from fakes.front_door import FrontDoor
from fakes.story import came, open_requests, run

from noria.client import (
    AsyncClient,
    Closed,
    Code,
    Refused,
    Unreachable,
)
from noria.proto.frontdoor import (
    Generate,
    Identify,
    Preview,
)


def test_describe_says_what_is_served(door: FrontDoor) -> None:
    async def story(client: AsyncClient) -> None:
        first, second = await asyncio.gather(client.describe(), client.describe())
        assert first.models == second.models == ("fake",)

    run(door, story)


def test_a_preview_is_a_question_of_its_own_and_carries_the_clients_key_and_class(door: FrontDoor) -> None:
    async def story(client: AsyncClient) -> None:
        told, known = await asyncio.gather(
            client.preview("hi", max_tokens=3, request_id="mine"), client.identify("operator")
        )
        assert (told.admitted, told.finish_ms) == (True, 3.0)
        assert known.classes == ("standard", "admin")
        asked = door.of(Preview)[0].request
        assert told.id == asked.id != "mine"
        assert (asked.prompt, asked.sampling.max_tokens) == ("hi", 3)
        with pytest.raises(Refused) as caught:
            await client.identify("nobody")
        assert caught.value.code is Code.UNAUTHORIZED
        assert not door.of(Generate) and open_requests(client) == 0

    run(door, story)


def test_a_question_lost_with_its_server_is_asked_again(door: FrontDoor) -> None:
    door.lively = False

    async def story(client: AsyncClient) -> None:
        waiting = asyncio.ensure_future(client.preview("hi"))
        await came(door, Preview)
        door.lively = True
        await asyncio.to_thread(door.restart)
        assert (await waiting).admitted

    run(door, story)


def test_a_question_that_nobody_answers_is_given_up_and_a_closed_client_says_so(door: FrontDoor) -> None:
    door.lively = False

    async def story(client: AsyncClient) -> None:
        with pytest.raises(Unreachable, match=r"0\.05 s"):
            await client.preview("hi", timeout_s=0.05)
        waiting = asyncio.ensure_future(client.identify())
        await came(door, Identify)
        await client.aclose()
        with pytest.raises(Closed):
            await waiting

    run(door, story)
