"""Many streams at once, readers that do not read, and clients that go away."""

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import time
import uuid
from collections.abc import Iterator

import httpx
import pytest
from e2e.harness import Stack, wait_until

from noria.client import AsyncClient, Generation
from noria.proto import frontdoor
from noria.proto.base import Header
from noria.proto.sampling import Sampling
from noria.proto.wire import Codec

VANISHING = 20
LONG = {"model": "tiny", "prompt": "go on", "max_tokens": 1500, "ignore_eos": True}


@pytest.fixture(autouse=True)
def everything_is_given_back(tiny: Stack) -> None:
    tiny.wait_idle()


def test_256_streams_of_mixed_lengths_finish_complete_and_leave_nothing(tiny: Stack) -> None:
    chance = random.Random(5)
    jobs = [(f"{chance.random()} " * chance.randint(1, 20), chance.randint(1, 48), number) for number in range(256)]

    async def one(client: AsyncClient, prompt: str, length: int, seed: int) -> tuple[list[int], str, str]:
        ids: list[int] = []
        text = ""
        generation = client.generate(prompt=prompt, max_tokens=length, ignore_eos=True, seed=seed, temperature=1.0)
        async for delta in generation:
            ids.extend(delta.token_ids)
            text += delta.text
        return ids, text, (await generation.result()).choices[0].finish_reason

    async def run() -> None:
        async with AsyncClient(tiny.endpoint) as client:
            together = await asyncio.gather(*(one(client, *job) for job in jobs))
            for (_, length, _), (ids, _, reason) in zip(jobs, together, strict=True):
                assert len(ids) == length
                assert reason == "length"
            for number in chance.sample(range(256), 12):
                assert await one(client, *jobs[number]) == together[number]

    asyncio.run(run())
    tiny.wait_idle()


def test_services_that_have_become_idle_collect_their_garbage(tiny: Stack) -> None:
    body = {"prompt": "go on", "max_tokens": 2}
    assert httpx.post(f"{tiny.url}/v1/completions", json=body, timeout=60, trust_env=False).status_code == 200

    def collected() -> bool:
        state = tiny.state()
        return all(state[name]["garbage"]["full"] > 0 for name in ("gateway", "admission", "scheduler", "detokenizer"))

    wait_until(collected, 60, "garbage is collected")


def test_seeded_sampling_does_not_depend_on_the_batch_even_when_mates_are_cancelled(tiny: Stack) -> None:
    async def mate(client: AsyncClient, number: int) -> None:
        async for delta in client.generate(
            prompt=f"mate {number}", max_tokens=200, temperature=0.3 * number, ignore_eos=True
        ):
            if number % 2 and delta.token_ids:
                break

    async def run() -> None:
        async with AsyncClient(tiny.endpoint) as client:
            options = {
                "prompt": "the same",
                "max_tokens": 100,
                "seed": 11,
                "temperature": 1.2,
                "top_k": 50,
                "top_p": 0.9,
                "min_p": 0.01,
            }
            alone = await client.complete(**options)
            mates = [asyncio.create_task(mate(client, number)) for number in range(24)]
            together = await asyncio.gather(*(client.complete(**options) for _ in range(3)))
            await asyncio.gather(*mates)
            for each in together:
                assert each.choices[0].token_ids == alone.choices[0].token_ids

    asyncio.run(run())
    tiny.wait_idle()


def request_head(path: str, body: bytes, port: int) -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        + body
    )


def open_stream(stack: Stack, *, stream: bool, read: bool) -> socket.socket:
    """Start a long completion on a plain socket with a tiny receive buffer."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    connection.settimeout(60)
    connection.connect(("127.0.0.1", stack.port))
    connection.sendall(request_head("/v1/completions", json.dumps({**LONG, "stream": stream}).encode(), stack.port))
    if read:
        assert connection.recv(16)
    return connection


@contextlib.contextmanager
def under_way(tiny: Stack, *, stream: bool) -> Iterator[socket.socket]:
    """A connection whose request is in the middle of its tokens and stays there; a whole answer's may be at its prompt."""
    while True:
        with contextlib.ExitStack() as holding:
            if not stream:
                holding.enter_context(tiny.held())
            connection = open_stream(tiny, stream=stream, read=stream)
            if stream:
                holding.enter_context(tiny.held())
                if not tiny.of("admission")["requests"]:  # it has come to its end already
                    connection.close()
                    continue
            wait_until(lambda: tiny.of("scheduler")["running"] == 1, 60, "running")
            yield connection
            return


@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "whole"])
def test_a_closed_connection_gives_its_blocks_back_within_two_steps(tiny: Stack, stream: bool) -> None:
    admission = tiny.of("admission")
    with under_way(tiny, stream=stream) as connection:
        connection.close()
        cancelled = admission["totals"]["cancelled"] + 1
        wait_until(lambda: tiny.of("admission")["totals"]["cancelled"] == cancelled, 60, "cancelled")
    tiny.wait_idle()
    reclaimed = admission["reclaims"]["count"] + 1
    wait_until(lambda: tiny.of("admission")["reclaims"]["count"] == reclaimed, 60, "reclaimed")
    assert tiny.of("admission")["reclaims"]["steps_max"] <= 2


def test_a_reader_that_does_not_read_does_not_slow_the_others(tiny: Stack) -> None:
    def seconds() -> float:
        begun = time.monotonic()
        httpx.post(f"{tiny.url}/v1/completions", json={**LONG, "max_tokens": 60}, timeout=60).raise_for_status()
        return time.monotonic() - begun

    alone = min(seconds() for _ in range(3))
    ended = tiny.of("admission")["totals"]["length"] + 4
    idle = [open_stream(tiny, stream=True, read=True) for _ in range(4)]
    try:
        wait_until(lambda: tiny.of("admission")["totals"]["length"] == ended, 240, "the unread streams are computed")
        assert min(seconds() for _ in range(3)) < 5 * alone + 1
    finally:
        for connection in idle:
            connection.close()
    tiny.wait_idle()


def test_a_client_that_vanishes_without_a_word_is_cancelled(tiny: Stack) -> None:
    import zmq

    name = f"client-{uuid.uuid4().hex}"
    codec = Codec(frontdoor.TO_CLIENT)
    peer = zmq.Context.instance().socket(zmq.DEALER)
    peer.setsockopt(zmq.LINGER, 0)
    peer.setsockopt(zmq.RCVTIMEO, 60_000)
    peer.setsockopt(zmq.ROUTING_ID, name.encode())
    peer.connect(tiny.endpoint)
    cancelled = tiny.of("admission")["totals"]["cancelled"] + 16 * VANISHING
    with tiny.held():  # so that only a cancellation ends them
        for number in range(VANISHING):
            body = frontdoor.Generate(
                id=f"gone-{number}", prompt="go on", sampling=Sampling(max_tokens=1900, ignore_eos=True), n=16
            )
            peer.send_multipart(codec.encode(Header("Generate", name, 5, 0, number + 1), body))
        while codec.header(peer.recv_multipart()).kind != "Accepted":
            pass
        peer.close()
        wait_until(lambda: tiny.of("admission")["totals"]["cancelled"] == cancelled, 60, "every stream cancelled")
    tiny.wait_idle()


@pytest.mark.parametrize("service", ["scheduler", "detokenizer"])
def test_streams_that_end_while_a_service_is_given_up_are_forgotten_when_it_comes_back(
    tiny: Stack, service: str
) -> None:
    async def stopped_midway(client: AsyncClient) -> list[Generation]:
        """Five streams that have begun, none of which has ended when the service is stopped."""
        while True:
            begun = [client.generate(prompt=f"go on {n}", max_tokens=600, ignore_eos=True) for n in range(5)]
            for each in begun:
                await each.next()
            with tiny.held():
                if tiny.of("admission")["streams"] == len(begun):
                    os.kill(tiny.pids()[service], signal.SIGSTOP)
                    return begun
            for each in begun:
                each.leave()

    async def run() -> None:
        async with AsyncClient(tiny.endpoint) as client:
            kept, *others = await stopped_midway(client)
            try:
                await asyncio.to_thread(
                    wait_until, lambda: tiny.of("admission")["peers"][service] == "0", 60, f"{service} given up"
                )
                for each in others:
                    each.leave()
                await asyncio.to_thread(wait_until, lambda: tiny.of("admission")["streams"] == 1, 60, "the end")
            finally:
                os.kill(tiny.pids()[service], signal.SIGCONT)
            assert len((await kept.result()).choices[0].token_ids) == 600

    asyncio.run(run())
    tiny.wait_idle()


def test_leaving_the_loop_cancels(tiny: Stack) -> None:
    def cancelled() -> int:
        return int(tiny.of("admission")["totals"]["cancelled"])

    async def run() -> None:
        async with AsyncClient(tiny.endpoint) as client:
            async for delta in client.generate(prompt="go on", max_tokens=1900, ignore_eos=True):
                if delta.token_ids:
                    break
            await asyncio.get_running_loop().run_in_executor(None, tiny.wait_idle)

    before = cancelled()
    while cancelled() == before:  # one that leaves late may find that the stream has ended
        asyncio.run(run())
