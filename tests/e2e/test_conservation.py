"""Whoever is killed under whatever load: every scrape adds up, and no count that was told is ever told smaller again."""

import asyncio
import os
import random
import signal
from itertools import pairwise
from pathlib import Path

import httpx
from e2e.harness import Stack, stack, wait_until
from e2e.scraping import Scrape, check_growth, check_law, complete_scrape, scraped, total

from noria.client import AsyncClient, ClientError, ClientTimeouts
from noria.client.generate_request import Options

SEED, REQUESTS = 11, 36
VICTIMS = ("admission", "scheduler", "admission", "scheduler", "admission")
CLASSES = ("interactive", "standard", "batch")
PATIENT = ClientTimeouts(accept_s=120, answer_s=120, reconnect_s=120)


def wish(draw: random.Random) -> Options:
    """Some request: short or long, alone or several, perhaps with little time, perhaps one that cannot be."""
    wanted: Options = {
        "max_tokens": draw.choice((1, 20, 200, 600)),
        "n": draw.choice((1, 1, 2)),
        "traffic_class": draw.choice(CLASSES),
        "ignore_eos": True,
    }
    if draw.random() < 0.3:
        wanted["ttl_ms"] = draw.choice((1, 60, 300))
    if draw.random() < 0.1:
        wanted["n"] = 1000
    return wanted


async def request(client: AsyncClient, draw: random.Random) -> None:
    """Ask, read, and perhaps leave or cancel after a while."""
    generation = client.generate("hi", **wish(draw))
    enough = draw.choice((1, 20, 100, 10_000, 10_000))
    got = 0
    try:
        async for delta in generation:
            got += len(delta.token_ids)
            if got >= enough:
                await generation.cancel()
    except ClientError:
        await asyncio.sleep(0.02)  # refused, or late


async def load(running: Stack, draw: random.Random, over: asyncio.Event) -> None:
    """One reader's requests, one after the other, while it is not over; one at least."""
    async with AsyncClient(running.endpoint, patience=PATIENT) as client:
        while not over.is_set():
            await request(client, draw)


async def scrape(client: httpx.AsyncClient, scrapes: list[Scrape], over: asyncio.Event) -> None:
    while not over.is_set():
        answer = await client.get("/metrics")
        if answer.status_code == 200:
            scrapes.append(scraped(answer.text))
        await asyncio.sleep(0.01)


def told(scrapes: list[Scrape]) -> float:
    return total(scrapes[-1], "noria_ledger_ended_total") if scrapes else 0.0


def seen(scrapes: list[Scrape]) -> bool:
    """Whether every kind of end and refusal has come about, and a scrape has seen more than one request at a time."""
    last = scrapes[-1]
    # A fast machine foresees that they would be late.
    late = total(last, "noria_ledger_ended_total", end="deadline") + total(
        last, "noria_requests_refused_total", code="deadline"
    )
    ends = (total(last, "noria_ledger_ended_total", end=end) for end in ("length", "cancelled"))
    invalid = total(last, "noria_requests_refused_total", code="invalid")
    return all((*ends, late, invalid)) and any(total(each, "noria_ledger_in_flight") > 1 for each in scrapes)


def replaced(running: Stack, victim: str) -> None:
    """Kill a service and wait for the next one; on a busy machine either may take a while to answer."""
    pids: dict[str, int] = {}
    wait_until(lambda: (pids.update(running.pids()), victim in pids)[1], 60, f"{victim} answers")
    old = pids[victim]
    os.kill(old, signal.SIGKILL)
    wait_until(lambda: running.pids().get(victim, old) != old, 60, f"a new {victim}")


async def drive(running: Stack, scrapes: list[Scrape]) -> None:
    """Load, and a death each time another part of the requests has ended."""
    draw, over = random.Random(SEED), asyncio.Event()
    async with httpx.AsyncClient(base_url=running.url, timeout=60) as http:
        scraping = asyncio.create_task(scrape(http, scrapes, over))
        loads = [asyncio.create_task(load(running, random.Random(draw.random()), over)) for _ in range(8)]
        for count, victim in enumerate(VICTIMS, 1):
            while told(scrapes) < count * REQUESTS // len(VICTIMS):
                await asyncio.sleep(0.005)
            await asyncio.to_thread(replaced, running, victim)
        while told(scrapes) < REQUESTS * 2 or not seen(scrapes):
            await asyncio.sleep(0.005)
        over.set()
        await asyncio.gather(scraping, *loads)


def test_every_scrape_adds_up_and_counts_go_on_over_deaths(tiny_model: Path) -> None:
    small = (
        "--dtype",
        "float32",
        "--num-blocks",
        "80",
        "--max-model-tokens",
        "1024",
        "--max-requests-per-batch",
        "6",
        "--max-queue-size",
        "8",
    )
    scrapes: list[Scrape] = []
    with stack(str(tiny_model), *small, environment={"OMP_NUM_THREADS": "1"}) as running:
        asyncio.run(asyncio.wait_for(drive(running, scrapes), 240))
        running.wait_idle()
        scrapes.append(complete_scrape(running.url))
        assert "Traceback" not in running.log()
    whole = [each for each in scrapes if check_law(each)]
    for earlier, later in pairwise(whole):
        check_growth(earlier, later)
    last = whole[-1]
    assert total(last, "noria_ledger_in_flight") == 0
    assert total(last, "noria_service_starts_total", service="admission") > VICTIMS.count("admission")
    assert seen(whole)
