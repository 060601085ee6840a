"""Readers that do not read, and more requests than there is room for: memory stays bounded and nobody else waits."""

import asyncio
import json
import socket
import time
from pathlib import Path

import httpx
import pytest
from e2e.harness import Stack, wait_until

from noria.client import AsyncClient, Refused
from noria.proto.base import Header
from noria.proto.frontdoor import Generate
from noria.proto.sampling import Sampling
from noria.proto.wire import Codec, every_kind

READERS, CHOICES, TOKENS = 12, 3, 1200
# Some 400 bytes a token on the wire: four such streams are 2 MB, more than socket buffers hold.
WORDY = {"prompt": "go on", "max_tokens": TOKENS, "ignore_eos": True, "stream": True, "logprobs": 5}
GROWTH_MIB_MAX = 32
ROOM = 8 + 16  # places in a batch and in the queue of `narrow`


def memory_mib(pid: int) -> float:
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) / 1024 for line in rollup.splitlines() if line.startswith("Pss:"))


def deaf_over_http(running: Stack, choices: int) -> socket.socket:
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    connection.settimeout(60)
    connection.connect(("127.0.0.1", running.port))
    body = json.dumps({**WORDY, "n": choices}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection


def read_late(connection: socket.socket) -> int:
    """Read a streamed answer from its beginning to its end; returns how many tokens came."""
    received = bytearray()
    while not received.endswith(b"0\r\n\r\n"):
        part = connection.recv(1 << 16)
        assert part, "the stream was cut"
        received += part
    assert b"data: [DONE]" in received
    # Chunks of the transfer begin anywhere but within an event.
    events = [json.loads(line[6:]) for line in received.splitlines() if line.startswith(b"data: {")]
    told = [event["choices"][0].get("logprobs") for event in events]
    return sum(len(each["tokens"]) for each in told if each)


@pytest.mark.slow
def test_stalled_readers_hold_bounded_memory_and_nobody_up(narrow: Stack) -> None:
    import zmq

    pids = narrow.pids()
    watched = {name: pids[name] for name in ("gateway", "admission", "detokenizer", "scheduler")}
    before = {name: memory_mib(pid) for name, pid in watched.items()}
    codec = Codec(every_kind())
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    readers = []
    deaf = context.socket(zmq.DEALER)
    deaf.setsockopt(zmq.LINGER, 0)
    deaf.setsockopt(zmq.RCVHWM, 1)
    deaf.setsockopt(zmq.ROUTING_ID, b"client-deaf")
    deaf.connect(narrow.endpoint)
    try:
        for number in range(READERS):
            # The first one's answer is several times what buffers on the way hold.
            readers.append(deaf_over_http(narrow, 1 if number else CHOICES))
            sampling = Sampling(max_tokens=TOKENS, ignore_eos=True, logprobs=5)
            body = Generate(f"deaf-{number}", prompt="go on", sampling=sampling)
            deaf.send_multipart(codec.encode(Header("Generate", "client-deaf", 5, 0, number + 1), body))
        asked = time.monotonic()
        narrow_answer = httpx.post(
            f"{narrow.url}/v1/completions", json={"prompt": "x", "max_tokens": 2}, timeout=90, trust_env=False
        )
        assert narrow_answer.status_code in (200, 503)
        assert time.monotonic() - asked < 90
        wait_until(lambda: narrow.state()["scheduler"]["running"] == 0, 120, "what nobody reads is computed to its end")
        grown = {name: memory_mib(pid) - before[name] for name, pid in watched.items()}
        assert not {name: mib for name, mib in grown.items() if mib > GROWTH_MIB_MAX}, grown
        short = {"prompt": "x", "max_tokens": 2, "stream": True}
        quick = httpx.post(f"{narrow.url}/v1/completions", json=short, timeout=30, trust_env=False)
        assert quick.status_code == 200 and "[DONE]" in quick.text
        assert read_late(readers[0]) == CHOICES * TOKENS
    finally:
        for each in readers:
            each.close()
        context.destroy(0)
    narrow.wait_idle()


def test_a_full_queue_is_an_answer_at_both_doors_and_what_was_accepted_is_served(narrow: Stack) -> None:
    async def run() -> tuple[list[int], list[str]]:
        body = {"prompt": "go on", "max_tokens": 150, "ignore_eos": True}
        async with (
            httpx.AsyncClient(base_url=narrow.url, timeout=240, trust_env=False) as http,
            AsyncClient(narrow.endpoint) as client,
        ):

            async def over_http() -> int:
                response = await http.post("/v1/completions", json=body)
                if response.status_code == 503:
                    assert response.json()["error"]["code"] == "overloaded"
                    assert int(response.headers["retry-after"]) >= 1
                return response.status_code

            async def over_zeromq() -> str:
                try:
                    return (await client.complete("go on", max_tokens=150, ignore_eos=True)).finish_reason
                except Refused as error:
                    return error.code.value if error.retry_after_ms else "refused without a time"

            with narrow.held():  # until the queue is full and everybody beyond it has been told so
                asked_http = [asyncio.create_task(over_http()) for _ in range(40)]
                asked_zeromq = [asyncio.create_task(over_zeromq()) for _ in range(40)]
                while sum(each.done() for each in (*asked_http, *asked_zeromq)) < 80 - ROOM:
                    await asyncio.sleep(0.01)
            return await asyncio.gather(*asked_http), await asyncio.gather(*asked_zeromq)

    statuses, ends = asyncio.run(run())
    assert set(statuses) <= {200, 503} and set(ends) <= {"length", "overloaded"}
    assert 16 <= statuses.count(200) + ends.count("length") <= ROOM
    narrow.wait_idle()


@pytest.mark.parametrize("door", ["gateway", "admission"])
def test_afterwards_nothing_is_kept(narrow: Stack, door: str) -> None:
    state = narrow.state()[door]
    assert not any(
        state.get(key) for key in ("open_responses", "requests", "streams", "attachments", "orphans", "unread")
    )
