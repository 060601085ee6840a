"""Bounds of the HTTP door on time and on the number of connections."""

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from fakes.front_door import FrontDoor, words
from gateway.test_gateway import HI, until

from noria.proto.base import Service
from noria.services.gateway.config import gateway_config
from noria.services.gateway.service import GatewayService
from noria.shared.actor.actor import Actor
from noria.shared.actor.endpoints import mailbox, prepare_runtime_dir, public_mailbox
from noria.shared.actor.mailbox import Mailbox
from noria.shared.config.config import Config, HttpSettings, RuntimeSettings, TelemetrySettings
from noria.shared.telemetry.telemetry import Telemetry

CONNECTIONS = 8


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """A gateway that waits half a second for a body and has room for eight connections."""
    runtime = RuntimeSettings(dir=str(tmp_path / "run"))
    prepare_runtime_dir(runtime)
    http = HttpSettings(address="127.0.0.1:0", body_timeout_s=0.5, connections_max=CONNECTIONS)
    config = gateway_config(Config(http=http, runtime=runtime))
    with FrontDoor(public_mailbox(runtime), words("hi")):
        actor = Actor(Mailbox(Service.GATEWAY, mailbox(runtime, Service.GATEWAY), {}, runtime), runtime)
        shell = GatewayService(actor, config, Telemetry(Service.GATEWAY, 1, TelemetrySettings()))
        thread = threading.Thread(target=actor.run, args=(shell,))
        thread.start()
        try:
            yield shell.port
        finally:
            actor.stop()
            thread.join(30)


def answer(port: int, sent: bytes) -> bytes:
    """The status line and what follows."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(sent)
        received = b""
        with contextlib.suppress(ConnectionError):
            while more := connection.recv(65_536):
                received += more
    return received


def request(body: bytes, length: int) -> bytes:
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
    return head.encode() + body


def test_a_body_that_does_not_come_is_given_up(port: int) -> None:
    body = json.dumps(HI).encode()
    assert answer(port, request(body, len(body))).startswith(b"HTTP/1.1 200 ")
    late = answer(port, request(body[:10], len(body)))
    assert late.startswith(b"HTTP/1.1 408 ")
    error = msgspec.json.decode(late.partition(b"\r\n\r\n")[2])["error"]
    assert error["code"] == "body_timeout"


def test_connections_beyond_the_bound_are_refused_and_those_within_it_served_again(port: int) -> None:
    body = json.dumps(HI).encode()
    with contextlib.ExitStack() as opened:
        for _ in range(CONNECTIONS):
            opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
        until(lambda: answer(port, request(body, len(body))).startswith(b"HTTP/1.1 503 "))
    until(lambda: answer(port, request(body, len(body))).startswith(b"HTTP/1.1 200 "))
