"""Admission or the detokenizer killed under running streams, and every process at once: answers are as if undisturbed."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from e2e.harness import LENIENT, Stack, stack, wait_until

from noria.client import AsyncClient, ClientTimeouts

STREAMS, TOKENS, KILLS = 8, 500, 3
PATIENT = ClientTimeouts(accept_s=120, answer_s=120, reconnect_s=120)
Answer = tuple[list[int], str, str]


@pytest.fixture(scope="module")
def running(tiny_model: Path) -> Iterator[Stack]:
    with stack(str(tiny_model), "--dtype", "float32", environment={**LENIENT, "OMP_NUM_THREADS": "1"}) as started:
        yield started
        assert "Traceback" not in started.log()


@pytest.fixture(scope="module")
def undisturbed(running: Stack) -> list[Answer]:
    found, _ = asyncio.run(answers(running, lambda: False, 0))
    assert all(len(ids) == TOKENS for ids, _, _ in found)
    return found


async def answer(client: AsyncClient, number: int, seen: list[int], stop: str) -> Answer:
    """One stream's tokens, text and end as its reader got them; `seen` counts the tokens of all."""
    ids: list[int] = []
    text, matched = "", ""
    generation = client.generate(
        f"Stream {number}",
        max_tokens=TOKENS,
        temperature=1.0,
        seed=number,
        ignore_eos=True,
        stop=(stop,) if stop else (),
    )
    async for delta in generation:
        assert (delta.start, delta.characters) == (len(ids), len(text)), "a hole, or something told twice"
        ids.extend(delta.token_ids)
        text += delta.text
        seen[0] += len(delta.token_ids)
        matched = delta.finish.matched if delta.finish is not None else matched
    return ids, text, matched


async def answers(
    running: Stack, disturb: Callable[[], bool], times: int, stops: Sequence[str] = ()
) -> tuple[list[Answer], int]:
    """All streams' answers, disturbed each time another part of the tokens has come; and how often that hit any of them."""
    seen, struck = [0], 0

    async def disturbance() -> None:
        nonlocal struck
        for count in range(1, times + 1):
            while seen[0] < count * STREAMS * TOKENS // (4 * times):
                if streams.done():
                    return
                await asyncio.sleep(0.002)
            struck += await asyncio.to_thread(disturb)

    async with AsyncClient(running.endpoint, patience=PATIENT) as client:
        each_stop = stops or [""] * STREAMS
        streams = asyncio.gather(*(answer(client, number, seen, stop) for number, stop in enumerate(each_stop)))
        got, _ = await asyncio.gather(streams, disturbance())
    return got, struck


def kill(running: Stack, service: str) -> bool:
    """As by the kernel, while streams are under way; returns when there is another. False when all were at their end."""
    with running.held():
        if not running.of("admission")["streams"]:
            return False
        before = running.pids()[service]
        os.kill(before, signal.SIGKILL)
        wait_until(lambda: running.pids().get(service, before) != before, 60, f"a new {service}")
    return True


def endure(running: Stack, disturb: Callable[[], bool], times: int, expected: list[Answer], *stops: str) -> int:
    """Ask until what disturbs has hit so often; every answer is as expected. Returns how often it asked."""
    rounds = 0
    while times > 0:
        got, struck = asyncio.run(answers(running, disturb, times, stops))
        assert got == expected
        times -= struck
        rounds += 1
    return rounds


def late(text: str) -> str:
    """What occurs in a text for the first time when more than three quarters of it are over."""
    begin = len(text) * 3 // 4
    return next(text[at : at + 4] for at in range(begin, len(text)) if text.find(text[at : at + 4]) == at)


def test_streams_go_on_as_if_admission_had_not_been_killed(running: Stack, undisturbed: list[Answer]) -> None:
    endure(running, lambda: kill(running, "admission"), KILLS, undisturbed)


def test_streams_go_on_as_if_the_detokenizer_had_not_been_killed(running: Stack, undisturbed: list[Answer]) -> None:
    endure(running, lambda: kill(running, "detokenizer"), KILLS - 1, undisturbed)


def test_stop_strings_are_found_where_they_were_though_the_detokenizer_was_killed(
    running: Stack, undisturbed: list[Answer]
) -> None:
    stops = [late(text) for _, text, _ in undisturbed]
    whole, _ = asyncio.run(answers(running, lambda: False, 0, stops))
    for (ids, text, matched), (long_ids, long_text, _), stop in zip(whole, undisturbed, stops, strict=True):
        assert (matched, text) == (stop, long_text[: long_text.find(stop)])
        assert ids == long_ids[: len(ids)] and len(ids) < TOKENS
    endure(running, lambda: kill(running, "detokenizer"), KILLS - 1, whole, *stops)


def test_streams_go_on_as_if_not_everything_had_been_killed(running: Stack, undisturbed: list[Answer]) -> None:
    def kill_all() -> bool:
        with running.held():
            if not running.of("admission")["streams"]:
                return False
            pids = running.pids()
            for pid in (pids["supervisor"], *(pid for name, pid in pids.items() if name != "supervisor")):
                os.kill(pid, signal.SIGKILL)
        running.process.wait(60)
        running.start()
        return True

    accepted = running.of("admission")["totals"]["accepted"]
    rounds = endure(running, kill_all, 1, undisturbed)
    running.wait_ready()
    running.wait_idle()
    totals = running.of("admission")["totals"]
    assert totals["accepted"] == totals["length"] + totals["stop"] == accepted + rounds * STREAMS
