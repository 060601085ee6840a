"""Requests that are cancelled at any moment, on a whole stack: what they held comes back, and nobody else notices."""

import asyncio
import random

import pytest
from e2e.harness import Stack

from noria.client import AsyncClient

MATES = 4
AT_ONCE = 32


async def vanish(client: AsyncClient, draw: random.Random, number: int) -> None:
    """Ask, and leave: at once, while the text becomes tokens, in the queue, with the prompt half computed, or later."""
    # Long texts take the tokenizer a while, and their prompts several steps.
    words = draw.choice([3, 60, 380])
    generation = client.generate(
        prompt=f"{number} " * words if words < 380 else f"{number:04} " * 380,
        max_tokens=draw.choice([4, 40]),
        ignore_eos=True,
        n=draw.choice([1, 1, 3]),
        temperature=1.0,
        seed=number,
    )
    moment = draw.randrange(4)
    if moment == 1:
        await asyncio.sleep(draw.random() * 0.05)
    elif moment == 2:
        await generation.accepted()
        await asyncio.sleep(draw.random() * 0.1)
    elif moment == 3:
        for _ in range(draw.randrange(1, 6)):
            if await generation.next() is None:
                break
    generation.leave()


async def leave_midway(tiny: Stack) -> None:
    """Leave when the first tokens have come of many."""
    async with AsyncClient(tiny.endpoint) as client:
        generation = client.generate(prompt="go on", max_tokens=1900, ignore_eos=True)
        await generation.next()
        generation.leave()


@pytest.mark.parametrize("count", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_whoever_is_cancelled_gives_back_everything_within_two_steps_and_changes_nobody_elses_tokens(
    tiny: Stack, count: int
) -> None:
    draw = random.Random(count)
    pids = tiny.pids()
    before = tiny.of("admission")["reclaims"]["count"]

    async def mate(client: AsyncClient, number: int) -> list[int]:
        options = {"prompt": f"mate {number}", "max_tokens": 60, "ignore_eos": True, "temperature": 0.9, "seed": number}
        return (await client.complete(**options)).choices[0].token_ids

    async def run() -> None:
        async with AsyncClient(tiny.endpoint) as client:
            alone = [await mate(client, number) for number in range(MATES)]
            together: list[list[int]] = []
            gone = False

            async def mates(number: int) -> None:
                while not gone:
                    assert await mate(client, number) == alone[number]
                    together.append(alone[number])

            staying = [asyncio.create_task(mates(number)) for number in range(MATES)]
            gate = asyncio.Semaphore(AT_ONCE)

            async def one(number: int) -> None:
                async with gate:
                    await vanish(client, draw, number)

            await asyncio.gather(*(one(number) for number in range(count)))
            gone = True
            await asyncio.gather(*staying)
            assert len(together) >= MATES

    asyncio.run(run())
    tiny.wait_idle()
    while tiny.of("admission")["reclaims"]["count"] == before:  # a fast machine may have been done before anybody left
        asyncio.run(leave_midway(tiny))
        tiny.wait_idle()
    assert tiny.of("admission")["reclaims"]["steps_max"] <= 2
    assert tiny.pids() == pids, "everybody is alive"
