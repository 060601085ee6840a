"""A gateway process against clients that send without end over raw sockets: what it answers, whether it closes, what it keeps."""

import contextlib
import json
import os
import re
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from fakes.front_door import FrontDoor, Mail, words
from gateway.test_gateway import HI, until

from noria.proto.base import Service
from noria.proto.frontdoor import Generate
from noria.proto.lifecycle import State
from noria.services.gateway.http_protocol import HEAD_BYTES_MAX
from noria.shared.actor.endpoints import prepare_runtime_dir, public_mailbox
from noria.shared.actor.inspect import inspect
from noria.shared.config.config import RuntimeSettings

BODY_S = 1.0
MEGABYTE = 1 << 20
FLOOD = 24 * MEGABYTE  # what a client sends at most before the test gives up on being stopped
GROWTH_MAX = 8 * MEGABYTE  # of resident memory: a read's buffer and the parser's, but not the flood
BODY = json.dumps(HI).encode()
CHAT = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
CHUNKED = CHAT + b"Transfer-Encoding: chunked\r\n\r\n"
CHUNK = b"%x\r\n%b\r\n" % (len(BODY), BODY)
HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


class GatewayProcess:
    """A gateway in a process of its own, whose memory can be read, and its fake admission."""

    def __init__(self, folder: Path) -> None:
        runtime = RuntimeSettings(dir=str(folder / "run"))
        prepare_runtime_dir(runtime)
        self.door = FrontDoor(public_mailbox(runtime), words("hi")).start()
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        config = folder / "noria.json"
        http = {"address": f"127.0.0.1:{self.port}", "body_timeout_s": BODY_S, "body_bytes_max": MEGABYTE}
        config.write_bytes(msgspec.json.encode({"http": http, "runtime": {"dir": runtime.dir}}))
        environment = {name: value for name, value in os.environ.items() if not name.startswith("NORIA_")}
        command = [sys.executable, "-m", "noria.services.gateway", "--config", str(config)]
        self.process = subprocess.Popen(command, env=environment)
        try:
            until(lambda: (found := inspect(runtime, Service.GATEWAY, 0.2)) is not None and found.state is State.READY)
            for _ in range(20):  # what the first requests allocate is no growth
                assert self.exchange(CHAT + b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(BODY) + BODY)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the process and its admission."""
        self.process.kill()
        self.process.wait(30)
        self.door.stop()

    def connect(self) -> socket.socket:
        """A connection on which nothing blocks for ever."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)

    def resident(self) -> int:
        """Bytes of memory that the process holds."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def exchange(self, sent: bytes) -> bytes:
        """Everything that is answered to `sent` until the connection closes."""
        with self.connect() as connection:
            connection.sendall(sent)
            return rest(connection)


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    started = GatewayProcess(tmp_path_factory.mktemp("hostile"))
    yield started
    started.close()


@pytest.fixture
def gateway(process: GatewayProcess) -> Iterator[GatewayProcess]:
    process.door.received.clear()
    process.door.script = words("hi")
    yield process
    assert process.process.poll() is None
    assert b"HTTP/1.1 200 " in process.exchange(HEALTH[:-2] + b"Connection: close\r\n\r\n")


def rest(connection: socket.socket) -> bytes:
    """What still comes until the connection closes. A reset counts as closed."""
    received = b""
    with contextlib.suppress(ConnectionError):
        while more := connection.recv(65_536):
            received += more
    return received


def flood(connection: socket.socket, block: bytes, total: int = FLOOD) -> int:
    """Send `block` again and again until something is answered, or the connection closes, or `total` bytes are sent."""
    sent = 0
    with contextlib.suppress(ConnectionError):
        while sent < total:
            readable, writable, _ = select.select([connection], [connection], [], 30)
            if readable:
                break
            assert writable
            sent += connection.send(block)
    return sent


def statuses(received: bytes) -> list[int]:
    """The statuses of all answers in `received`, in order."""
    return [int(each) for each in re.findall(rb"HTTP/1\.1 (\d{3}) ", received)]


def is_cut_off(connection: socket.socket) -> bool:
    """Whether nobody takes another byte."""
    try:
        connection.sendall(b" ")
    except ConnectionError:
        return True
    return False


def is_whole(answer: bytes) -> bool:
    """Whether one answer is all there, head and body, and nothing after it."""
    head, _, body = answer.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    return length is not None and len(body) == int(length[1])


# What comes before the flood, and what is repeated.
FLOODS = {
    "trailer lines": (CHUNKED + CHUNK + b"0\r\n", b"X-Trailer: 0123456789\r\n" * 4000),
    "one trailer line": (CHUNKED + CHUNK + b"0\r\nX-Trailer: ", b"a" * 65_536),
    "the name of a trailer": (CHUNKED + CHUNK + b"0\r\n", b"a" * 65_536),
    "trailers of an answered request": (
        b"GET /health HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
        b"X-Trailer: 0123456789\r\n" * 4000,
    ),
    "header lines": (CHAT, b"X-Header: 0123456789\r\n" * 4000),
    "one header line": (CHAT + b"X-Header: ", b"a" * 65_536),
    "the request line": (b"GET /", b"a" * 65_536),
    "the method": (b"", b"A" * 65_536),
    "empty lines before the request": (b"", b"\r\n" * 30_000),
    "a chunk's size": (CHUNKED, b"0" * 65_536),
    "a chunk's extension": (CHUNKED + b"5;name=", b"a" * 65_536),
    "the last chunk's extension": (CHUNKED + CHUNK + b"0;name=", b"a" * 65_536),
    "extensions of many chunks": (CHUNKED, (b"1;" + b"a" * 4000 + b"\r\n \r\n") * 16),
    "chunks of a byte": (CHUNKED, b"1\r\n \r\n" * 10_000),
    "chunks of the body": (CHUNKED, b"10000\r\n" + b" " * 65_536 + b"\r\n"),
}
OTHER_STATUSES = {"chunks of a byte": (413, 408), "chunks of the body": (413,), "the method": (400,)}


@pytest.mark.parametrize("name", FLOODS)
def test_a_request_without_end_is_refused_and_its_connection_closed_and_it_is_not_kept(
    gateway: GatewayProcess, name: str
) -> None:
    begin, block = FLOODS[name]
    before = gateway.resident()
    with gateway.connect() as connection:
        connection.sendall(begin)
        answered = b""
        if name == "trailers of an answered request":
            while b"\r\n\r\n" not in answered:
                answered += connection.recv(65_536)
        sent = flood(connection, block)
        answered += rest(connection)
    assert gateway.resident() - before < GROWTH_MAX
    assert sent < FLOOD
    if name == "trailers of an answered request":
        assert statuses(answered) == [200]
        return
    (status,) = statuses(answered)
    assert status in OTHER_STATUSES.get(name, (431,))
    assert is_whole(answered)
    assert b"connection: close" in answered
    assert gateway.door.of(Generate) == []


def test_requests_whose_answers_are_not_read_are_not_kept(gateway: GatewayProcess) -> None:
    before = gateway.resident()
    with gateway.connect() as connection:
        sent, grown, deadline = 0, 0, time.monotonic() + 30
        with contextlib.suppress(ConnectionError):
            while sent < FLOOD and select.select([], [connection], [], 1)[1]:
                assert time.monotonic() < deadline
                sent += connection.send(HEALTH * 1500)
                grown = max(grown, gateway.resident() - before)
        answers = rest(connection)
    assert grown < GROWTH_MAX
    assert set(statuses(answers)) <= {200}


def test_requests_behind_one_that_is_being_answered_are_not_kept_and_those_taken_are_answered(
    gateway: GatewayProcess,
) -> None:
    gateway.door.script = lambda door, mail: door.accept(mail) if isinstance(mail.body, Generate) else None
    before = gateway.resident()
    with gateway.connect() as connection:
        connection.sendall(CHAT + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY)
        mail = gateway.door.wait_for(Generate)
        for _ in range(8):
            connection.settimeout(0.1)
            with contextlib.suppress(TimeoutError, ConnectionError):
                connection.sendall(HEALTH * 20_000)
        assert gateway.resident() - before < GROWTH_MAX
        finish(gateway.door, mail)
        connection.settimeout(30)
        answers = rest(connection)
    assert b'"content":"late"' in answers
    assert 2 <= len(statuses(answers)) <= 64
    assert set(statuses(answers)) == {200}


def test_a_few_requests_sent_at_once_are_answered_in_order_on_one_connection(gateway: GatewayProcess) -> None:
    chat = CHAT + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
    missing = b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n"
    last = HEALTH[:-2] + b"Connection: close\r\n\r\n"
    answers = gateway.exchange((chat + missing + CHUNKED + CHUNK + b"0\r\n\r\n") * 3 + last)
    assert statuses(answers) == [200, 404, 200] * 3 + [200]


def finish(door: FrontDoor, mail: Mail) -> None:
    """Answer what was accepted."""
    assert isinstance(mail.body, Generate)
    door.say(mail.client, mail.body.id, "late")
    door.finish(mail.client, mail.body.id, 1)


@pytest.mark.parametrize("wrong", [b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nX: " + b"a" * 2 * HEAD_BYTES_MAX])
def test_what_is_wrong_behind_a_request_does_not_cut_its_answer(gateway: GatewayProcess, wrong: bytes) -> None:
    gateway.door.script = lambda door, mail: door.accept(mail) if isinstance(mail.body, Generate) else None
    with gateway.connect() as connection:
        connection.sendall(CHAT + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY + wrong)
        mail = gateway.door.wait_for(Generate)
        assert not select.select([connection], [], [], 0.2)[0]
        finish(gateway.door, mail)
        answer = rest(connection)
    assert statuses(answer) == [200]
    assert is_whole(answer)


def test_trailers_are_read_and_ignored(gateway: GatewayProcess) -> None:
    trailers = b"Authorization: Bearer stolen\r\nX-Request-Id: other\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n"
    with gateway.connect() as connection:
        connection.sendall(CHUNKED + CHUNK + b"0\r\n" + trailers + HEALTH[:-2] + b"Connection: close\r\n\r\n")
        answers = rest(connection)
    assert statuses(answers) == [200, 200]
    asked = gateway.door.wait_for(Generate).body
    assert isinstance(asked, Generate)
    assert asked.credential == ""
    assert asked.id != "other"


# What comes at once, and what comes again and again.
SLOW = {
    "trailers": (CHUNKED + CHUNK + b"0\r\n", b"X-Trailer: 0\r\n"),
    "chunks": (CHUNKED, b"1\r\n \r\n"),
    "an extension": (CHUNKED + b"1;", b"a"),
    "a body": (CHAT + b"Content-Length: 1000\r\n\r\n", b" "),
}


def test_requests_that_come_slowly_are_answered_408_and_their_connections_closed(gateway: GatewayProcess) -> None:
    with contextlib.ExitStack() as opened:
        waiting = {name: opened.enter_context(gateway.connect()) for name in SLOW}
        connections = dict(waiting)
        for name, connection in connections.items():
            connection.sendall(SLOW[name][0])
        deadline = time.monotonic() + BODY_S + 10
        while waiting:
            assert time.monotonic() < deadline
            readable = select.select(list(waiting.values()), [], [], 0.02)[0]
            waiting = {name: each for name, each in waiting.items() if each not in readable}
            for name, connection in waiting.items():
                connection.sendall(SLOW[name][1])
        for connection in connections.values():
            answer = rest(connection)
            assert statuses(answer) == [408]
            assert is_whole(answer)
            assert b"connection: close" in answer


def test_a_client_that_sends_on_after_a_refusal_reads_it_and_is_cut_off(gateway: GatewayProcess) -> None:
    with gateway.connect() as connection:
        connection.sendall(CHAT + b"Content-Length: 100000000\r\n\r\n")
        for _ in range(20):  # as a client does that writes its whole body before it reads
            connection.sendall(b" " * 100_000)
        answer = b""
        while not is_whole(answer):
            answer += connection.recv(65_536)
        assert statuses(answer) == [413]
        until(lambda: is_cut_off(connection))


def test_a_plain_body_in_many_small_chunks_is_read_beside_a_large_head(gateway: GatewayProcess) -> None:
    message = json.dumps({"messages": [{"role": "user", "content": "x" * 300_000}]}).encode()
    pieces = (message[start : start + 3] for start in range(0, len(message), 3))
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    head = CHAT + b"Connection: close\r\nX: " + b"a" * 60_000 + b"\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert statuses(gateway.exchange(head + chunks + b"0\r\n\r\n")) == [200]


@pytest.mark.parametrize(("size", "status"), [(HEAD_BYTES_MAX, 200), (HEAD_BYTES_MAX + 1, 431)])
def test_a_head_is_as_large_as_its_bound_and_not_larger(gateway: GatewayProcess, size: int, status: int) -> None:
    begin, end = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX: ", b"\r\n\r\n"
    answer = gateway.exchange(begin + b"a" * (size - len(begin) - len(end)) + end)
    assert statuses(answer) == [status]


UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n"


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("apart", [False, True])
def test_an_offer_of_another_protocol_is_ignored(gateway: GatewayProcess, chunked: bool, apart: bool) -> None:
    framing = b"Transfer-Encoding: chunked\r\n\r\n" if chunked else b"Content-Length: %d\r\n\r\n" % len(BODY)
    body = CHUNK + b"0\r\n\r\n" if chunked else BODY
    head = CHAT + b"Authorization: Bearer mine\r\n" + UPGRADE + framing
    last = HEALTH[:-2] + b"Connection: close\r\n\r\n"
    with gateway.connect() as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for part in (head[:70], head[70:], body[:5], body[5:], last) if apart else (head + body + last,):
            connection.sendall(part)
            if apart:
                select.select([connection], [], [], 0.03)
        answers = rest(connection)
    assert statuses(answers) == [200, 200]
    asked = gateway.door.wait_for(Generate).body
    assert isinstance(asked, Generate)
    assert (asked.credential, asked.messages[0].content) == ("mine", "hi")


@pytest.mark.parametrize(
    ("request_line", "hosts", "status"),
    [
        (b"GET /health HTTP/1.1", b"Host: x\r\n", 200),
        (b"GET /health HTTP/1.1", b"", 400),
        (b"GET /health HTTP/1.1", b"Host: x\r\nhost: y\r\n", 400),
        (b"GET /health HTTP/1.0", b"", 200),
        (b"GET /health HTTP/1.0", b"Host: x\r\nHost: x\r\n", 400),
        (b"CONNECT x:80 HTTP/1.1", b"Host: x\r\n", 400),
    ],
)
def test_a_request_names_its_host_once(gateway: GatewayProcess, request_line: bytes, hosts: bytes, status: int) -> None:
    answer = gateway.exchange(request_line + b"\r\n" + hosts + b"Connection: close\r\n\r\n")
    assert statuses(answer) == [status]
    assert is_whole(answer)
