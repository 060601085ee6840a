"""Runs client tests against a fake admission: each in an event loop of its own, with a time limit."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from fakes.front_door import FrontDoor, Mail

from noria.client import AsyncClient, ClientTimeouts, Generation
from noria.proto.frontdoor import Generate

QUICK: Final = ClientTimeouts(
    accept_s=60, answer_s=60, ping_s=0.1, silence_s=1.0, reconnect_s=60, resend_s=0.1, resend_max_s=0.2, leave_s=60
)
_STORY_S: Final = 120
Story = Callable[[AsyncClient], Coroutine[Any, Any, None]]


def run(door: FrontDoor, story: Story, patience: ClientTimeouts = QUICK) -> None:
    """Run a test coroutine with a client of this fake admission."""

    async def main() -> None:
        async with asyncio.timeout(_STORY_S):
            async with AsyncClient(door.endpoint, patience=patience) as client:
                await story(client)

    asyncio.run(main())


def open_requests(client: AsyncClient) -> int:
    """Return how many requests are unfinished, including abandoned ones whose end is not confirmed."""
    return len(client._protocol.calls)


async def until(condition: Callable[[], object]) -> None:
    """Wait until a condition is true."""
    while not condition():
        await asyncio.sleep(0.005)


async def came(door: FrontDoor, kind: type[Any], count: int = 1) -> Mail:
    """Wait until the fake admission has so many messages of a kind; returns the last of them."""
    return await asyncio.to_thread(door.wait_for, kind, count)


async def accepted(client: AsyncClient, door: FrontDoor) -> tuple[Generation, bytes]:
    """Send the request `r` and accept it by hand; returns it and the client's identity there."""
    generation = client.generate("hi", request_id="r")
    mail = await came(door, Generate)
    door.accept(mail)
    return generation, mail.client


async def restart(door: FrontDoor) -> None:
    """Restart the fake admission with empty memory, and wait until the client notices."""
    await asyncio.to_thread(door.restart)
    door.received.clear()
