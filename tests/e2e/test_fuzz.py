"""Wrong input on every door and mailbox of a running stack: nobody dies, hangs or keeps anything, and requests still work.

A seed repeats a run: `pytest tests/e2e/test_fuzz.py --seed 7`, with `--rounds` for more of it.
"""

import contextlib
import json
import random
import secrets
import socket
import threading
import time
from collections.abc import Iterator

import pytest
import zmq
from e2e.harness import Stack, wait_until
from fakes.mutations import HTTP_BODIES, Mutator

from noria.client import Client
from noria.proto import frontdoor, lifecycle
from noria.proto.base import Header, Service
from noria.proto.wire import Codec, every_kind, inbound

PATHS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/preview",
    "/v1/requests/chatcmpl-x",
    "/v1/models/\0",
    "/%ff%2e",
    "*",
)
SHORT = {"model": "tiny", "prompt": "hello", "max_tokens": 3}
CODEC = Codec(every_kind())


@pytest.fixture
def extent(request: pytest.FixtureRequest) -> tuple[int, int]:
    """The seed, and how often everything is done."""
    return int(request.config.getoption("--seed")), int(request.config.getoption("--rounds"))


@pytest.fixture(autouse=True)
def unharmed(tiny: Stack) -> Iterator[None]:
    """The same processes as before, all of them empty, and an answer."""
    before = tiny.pids()
    yield
    tiny.wait_idle()
    assert tiny.pids() == before, tiny.log()[-4000:]
    with Client(tiny.endpoint) as client:
        assert client.complete("hello", max_tokens=3, ignore_eos=True).usage.output_tokens == 3
    body = json.dumps(SHORT).encode()
    assert exchange(tiny.port, head("POST", "/v1/completions", len(body)) + body).startswith(b"HTTP/1.1 200")
    assert "Traceback" not in tiny.log()
    tiny.wait_idle()


def head(method: str, path: str, length: int | str, *lines: str) -> bytes:
    more = "".join(f"{line}\r\n" for line in lines)
    return (
        f"{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n"
        f"content-length: {length}\r\n{more}\r\n"
    ).encode("utf-8", "surrogatepass")


def exchange(port: int, data: bytes, timeout_s: float = 20.0, read_max: int = 1 << 20) -> bytes:
    """Send bytes and read until the other side closes; `TimeoutError` says that it does not."""
    received = b""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as connection,
        contextlib.suppress(ConnectionError),
    ):
        connection.sendall(data)
        while len(received) < read_max and (more := connection.recv(65_536)):
            received += more
    return received


def wrong_request(mutator: Mutator) -> tuple[bytes, bool]:
    """One wrong HTTP request, and whether it is whole, so that it must be answered."""
    draw = mutator.draw
    body = mutator.json(draw.choice(HTTP_BODIES))
    path = draw.choice(PATHS[:2]) if draw.random() < 0.8 else draw.choice(PATHS)
    match draw.randrange(10):
        case 0:  # chunks that are none
            size = draw.choice(["-1", "ffffffffffffffff", "zz", "5;x=y", f"{len(body):x}", f"{len(body) + 5:x}", ""])
            chunked = f"POST {path} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n{size}\r\n".encode()
            return chunked + body + draw.choice([b"\r\n0\r\n\r\n", b"0\r\n", b"\r\nzz\r\n"]), False
        case 1:  # two lengths, or both ways to tell one
            line = draw.choice(["transfer-encoding: chunked", "content-length: 3", "transfer-encoding: x"])
            return head("POST", path, len(body), line) + body, False
        case 2:
            return head("POST", path, draw.choice(["-5", "abc", "1e3", "9" * 30, str(len(body) + 7)])) + body, False
        case 3:  # the head itself
            data = head(
                draw.choice(["GET", "PUT", "\0", "P" * 9000]), path, len(body), "x: " + "y" * draw.choice([1, 60_000])
            )
            return mutator.noise(data), False
        case 4:
            names = ("last-event-id", "x-request-id", "idempotency-key", "x-noria-background", "authorization", "traceparent",
                     "x-noria-ttl-ms", "x-noria-class", "expect", "upgrade")  # fmt: skip
            values = (
                "",
                "-",
                "0.0.0",
                "1.2.3.end",
                "9" * 300,
                "true",
                "Bearer \xff",
                "é",
                "100-continue",
                "websocket",
                "a b",
            )
            return head("POST", path, len(body), f"{draw.choice(names)}: {draw.choice(values)}") + body, True
        case 5:
            return head(draw.choice(["GET", "DELETE", "HEAD", "OPTIONS"]), draw.choice(PATHS), 0), False
        case _:
            return head("POST", path, len(body)) + body, True


@contextlib.contextmanager
def dawdlers(port: int, count: int) -> Iterator[None]:
    """Connections that have begun a head or a body and do not go on."""
    body = json.dumps(SHORT).encode()
    request = head("POST", "/v1/completions", len(body)) + body
    with contextlib.ExitStack() as opened:
        for number in range(count):
            connection = opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
            connection.sendall(request[: number * len(request) // count])
        yield


def test_wrong_http_requests_are_refused_or_dropped(tiny: Stack, extent: tuple[int, int]) -> None:
    seed, rounds = extent
    failures: list[str] = []

    def some(own_seed: int) -> None:
        mutator = Mutator(own_seed)
        for number in range(60 * rounds):
            data, whole = wrong_request(mutator)
            if not whole and mutator.draw.random() < 0.7:
                with contextlib.suppress(TimeoutError):
                    exchange(tiny.port, data, 0.05)
                continue
            answer = exchange(tiny.port, data, 30) if whole else b""
            if b"HTTP/1.1 500" in answer or (whole and not answer):
                failures.append(f"seed {own_seed}, request {number}: {data[:500]!r} -> {answer[:300]!r}")

    with dawdlers(tiny.port, 40):
        threads = [threading.Thread(target=some, args=(seed * 1000 + each,)) for each in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures, failures[:3]
    wait_until(lambda: tiny.state()["gateway"]["open_responses"] == 0, 30, "no response is open")


@contextlib.contextmanager
def dealers(endpoint: str, *names: bytes) -> Iterator[list["zmq.Socket[bytes]"]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    sockets = []
    for name in names:
        dealer = context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.LINGER, 2000)
        dealer.setsockopt(zmq.SNDTIMEO, 10_000)
        dealer.setsockopt(zmq.ROUTING_ID, name)
        dealer.connect(endpoint)
        sockets.append(dealer)
    try:
        yield sockets
    finally:
        context.destroy()


def test_wrong_messages_at_the_public_mailbox_are_answered_or_dropped(tiny: Stack, extent: tuple[int, int]) -> None:
    seed, rounds = extent
    mutator = Mutator(seed)
    draw = mutator.draw
    names = [f"client-{seed}-{number}" for number in range(20)]
    strangers = [b"scheduler", b"inspector-1", b"client-", b"\xff\xfe", b"client-" + b"x" * 200, b"client-\x00"]
    malformed = tiny.state()["admission"]["malformed"]
    with dealers(tiny.endpoint, *(name.encode() for name in names), *strangers) as sockets:
        for _ in range(600 * rounds):
            place = draw.randrange(len(sockets))
            sender = names[place] if place < len(names) else draw.choice(["scheduler", "client-x"])
            kind = draw.choice([*frontdoor.TO_ADMISSION, frontdoor.Generate, frontdoor.Attach, lifecycle.Hello])
            header = Header(kind.__name__, sender, draw.choice([0, 5, 6]), draw.choice([0, 0, 0, 7]), draw.randrange(3))
            sockets[place].send_multipart(mutator.frames(header, kind))
            if draw.random() < 0.3:
                with contextlib.suppress(zmq.Again):
                    sockets[place].recv_multipart(zmq.NOBLOCK)
    wait_until(lambda: tiny.state()["admission"]["malformed"] > malformed + 100, 30, "they were looked at")


def test_floods_crowds_and_giants_at_the_public_mailbox_keep_nobody_waiting(
    tiny: Stack, extent: tuple[int, int]
) -> None:
    _, rounds = extent
    started = time.monotonic()
    with Client(tiny.endpoint) as client:
        crowd = [f"client-crowd{number}".encode() for number in range(150 * rounds)]
        with dealers(tiny.endpoint, *crowd) as sockets:
            for each, name in zip(sockets, crowd, strict=True):
                each.send_multipart(CODEC.encode(Header("Describe", name.decode(), 1), frontdoor.Describe()))
            for _ in range(3000 * rounds):  # one that asks and never reads
                with contextlib.suppress(zmq.Again):
                    header = Header("Describe", crowd[0].decode(), 1)
                    sockets[0].send_multipart(CODEC.encode(header, frontdoor.Describe()), zmq.NOBLOCK)
            for _ in range(20 * rounds):  # ends of requests that nobody knows, long ones
                names = tuple(secrets.token_hex(50) for _ in range(2000))
                header = Header("Acknowledge", crowd[1].decode(), 1)
                sockets[1].send_multipart(CODEC.encode(header, frontdoor.Acknowledge(names)))
            for _ in range(4):  # larger than any message may be: the connection is closed
                with contextlib.suppress(zmq.Again):
                    sockets[2].send_multipart([b"x" * (9 << 20), b""], zmq.NOBLOCK)
            asked = time.monotonic()
            assert client.complete("hello", max_tokens=3, ignore_eos=True).usage.output_tokens == 3
            assert time.monotonic() - asked < 30
    assert time.monotonic() - started < 90 * rounds


def test_wrong_messages_at_every_internal_mailbox_are_dropped(tiny: Stack, extent: tuple[int, int]) -> None:
    """From strangers, from strangers under the names of peers, and from these with the peers' true incarnations."""
    seed, rounds = extent
    mutator = Mutator(seed)
    draw = mutator.draw
    state = tiny.state()
    for service in Service:
        accepted = inbound(service)
        names = [*accepted, "stranger", "inspector-9", service.value]
        kinds = [*every_kind()]
        with dealers(f"ipc://{tiny.runtime_dir}/{service.value}.sock", *(name.encode() for name in names)) as sockets:
            for _ in range(150 * rounds):
                place = draw.randrange(len(names))
                name = names[place]
                fitting = accepted.get(name, ())
                kind = draw.choice(fitting if fitting and draw.random() < 0.6 else kinds)
                true = (
                    int(state[name]["incarnation"], 16)
                    if name in state and draw.random() < 0.5
                    else draw.getrandbits(62)
                )
                header = Header(
                    kind.__name__, name, true, int(state[service.value]["incarnation"], 16), draw.randrange(5)
                )
                frames = mutator.frames(header, kind)
                if readable(frames, true):
                    continue  # what its own neighbours would not say is not told apart from what they do
                sockets[place].send_multipart(frames)


def readable(frames: list[bytes], incarnation: int) -> bool:
    """Whether frames are a message that a peer in this life could have sent; greetings never are."""
    try:
        header = CODEC.header(frames)
        CODEC.body(header, frames)
    except ValueError:
        return False
    return header.incarnation == incarnation and header.kind not in ("Hello", "Inspect")


def test_seeds_repeat_a_run() -> None:
    one, other = (Mutator(7) for _ in range(2))
    for mutator in (one, other):
        mutator.draw = random.Random(9)
    assert [wrong_request(one) for _ in range(20)] == [wrong_request(other) for _ in range(20)]
