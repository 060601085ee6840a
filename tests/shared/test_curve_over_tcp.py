"""Mailboxes and the public door over real tcp with CURVE: who gets in, and as whom."""

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import zmq
from e2e.harness import free_port
from fakes.peers import runtime

from noria.client import AsyncClient, ClientTimeouts, Curve, Unreachable
from noria.proto.base import Header, Service
from noria.proto.frontdoor import Describe, Description
from noria.proto.lifecycle import Heartbeat, Hello, Snapshot, State
from noria.proto.wire import Codec, every_kind
from noria.services.admission.public_mailbox import PublicMailbox
from noria.shared.actor.curve import CLIENTS, OWNERS, PUBLIC, CurveKeyPair, CurveKeys, make_key_pairs
from noria.shared.actor.endpoints import mailbox, public_mailbox
from noria.shared.actor.inspect import inspect
from noria.shared.actor.mailbox import Mailbox
from noria.shared.config.config import RuntimeSettings

A, B = Service.SCHEDULER, Service.DETOKENIZER
Context = zmq.Context[zmq.Socket[bytes]]


@pytest.fixture
def settings(tmp_path: Path) -> RuntimeSettings:
    make_key_pairs(tmp_path / "keys", OWNERS)
    base = 10_000 + free_port() % 20_000  # below those that connections are made from
    return msgspec.structs.replace(runtime(tmp_path), transport="tcp", base_port=base, curve_dir=str(tmp_path / "keys"))


@pytest.fixture
def contexts() -> Iterator[Callable[[], Context]]:
    """A context for each process that is played."""
    made: list[Context] = []

    def new() -> Context:
        made.append(zmq.Context())
        return made[-1]

    yield new
    for each in made:
        each.destroy(0)


def box(settings: RuntimeSettings, service: Service, peer: Service, context: Context) -> Mailbox:
    return Mailbox(
        service, mailbox(settings, service, binding=True), {peer: mailbox(settings, peer)}, settings, context
    )


def received(box: Mailbox, seconds: float = 60.0) -> list[tuple[str, str]]:
    """The senders and kinds of what comes, once something has come; empty when nothing does."""
    deadline = time.monotonic() + seconds
    while not (got := [(header.sender, header.kind) for _, header, _ in box.receive(100)]):
        if time.monotonic() > deadline:
            return []
        box.router.poll(50)
    return got


def test_services_with_their_keys_hear_each_other(settings: RuntimeSettings, contexts: Callable[[], Context]) -> None:
    one, other = box(settings, A, B, contexts()), box(settings, B, A, contexts())
    deadline = time.monotonic() + 60
    while not one.try_send(B, Hello(1, State.READY)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert received(other) == [("scheduler", "Hello")]
    one.close(), other.close()


@pytest.mark.parametrize("stranger", ["no key", "an unknown key", "the wrong server key", "another service's key"])
def test_a_stranger_is_not_heard_and_the_peer_still_is(
    settings: RuntimeSettings, contexts: Callable[[], Context], stranger: str
) -> None:
    keys = CurveKeys(Path(settings.curve_dir))
    here = box(settings, A, B, contexts())
    socket = contexts().socket(zmq.DEALER)
    socket.setsockopt(zmq.ROUTING_ID, b"detokenizer")
    match stranger:
        case "an unknown key":
            Curve(keys.curve_to(A.value, "tools").server, CurveKeyPair.generate()).equip(socket)
        case "the wrong server key":
            Curve(keys.curve_to(B.value, "tools").server, keys.key_pair(B.value)).equip(socket)
        case "another service's key":
            keys.curve_to(A.value, Service.EXECUTOR.value).equip(socket)
        case _:
            pass
    socket.connect(mailbox(settings, A))
    codec = Codec(every_kind())
    forged = Header("Hello", "detokenizer", 99)
    socket.send_multipart(codec.encode(forged, Hello(1, State.READY)))
    if stranger == "another service's key":
        deadline = time.monotonic() + 60
        while here.malformed == 0 and time.monotonic() < deadline:
            assert received(here, 0.05) == []
        assert here.malformed == 1
    else:
        assert received(here, 0.5) == []
    socket.close(0)
    there = box(settings, B, A, contexts())
    deadline = time.monotonic() + 60
    while not there.try_send(A, Heartbeat(State.READY)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert received(here) == [("detokenizer", "Heartbeat")]
    here.close(), there.close()


def test_an_inspector_with_a_key_of_the_stack_is_answered(
    settings: RuntimeSettings, contexts: Callable[[], Context], tmp_path: Path
) -> None:
    import threading

    here = box(settings, A, B, contexts())
    done = threading.Event()

    def serve() -> None:
        while not done.is_set():
            here.router.poll(50)
            for identity, _, _ in here.receive(10):
                here.answer_inspector(identity, Snapshot("scheduler", 1, State.READY, b"{}"))

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        assert inspect(settings, A, 60) is not None
        make_key_pairs(tmp_path / "others", OWNERS)
        for public in (tmp_path / "keys").glob("*.key"):
            (tmp_path / "others" / public.name).write_text(public.read_text())
        stranger = msgspec.structs.replace(settings, curve_dir=str(tmp_path / "others"))
        assert inspect(stranger, A, 0.5) is None
    finally:
        done.set()
        thread.join()
        here.close()


@pytest.mark.parametrize("listed", [False, True], ids=["any key", "listed keys"])
def test_the_public_door_admits_any_key_or_the_listed_ones(
    settings: RuntimeSettings, contexts: Callable[[], Context], listed: bool
) -> None:
    folder = Path(settings.curve_dir)
    if listed:
        make_key_pairs(folder / CLIENTS, ("alice",))
    here = Mailbox(Service.ADMISSION, mailbox(settings, Service.ADMISSION, binding=True), {}, settings, contexts())
    door = PublicMailbox(public_mailbox(settings, binding=True), 5, 1 << 20, here._context, here.authenticator)
    patience = ClientTimeouts(resend_s=0.05)

    async def described(curve: Curve | None, timeout_s: float) -> bool:
        async def serve() -> None:
            while True:
                for name, header, body in door.receive(10):
                    assert isinstance(body, Describe)
                    door.send(name, header.incarnation, 1, Description(("m",), 1))
                await asyncio.sleep(0.01)

        server = asyncio.create_task(serve())
        try:
            async with AsyncClient(public_mailbox(settings), curve=curve, patience=patience) as client:
                await client.describe(timeout_s)
                return True
        except Unreachable:
            return False
        finally:
            server.cancel()

    public = folder / "public.key"
    try:
        assert asyncio.run(described(Curve.load(public), 0.5 if listed else 60)) is not listed
        assert not asyncio.run(described(None, 0.5))
        assert not asyncio.run(described(Curve.load(folder / "admission.key"), 0.5))
        assert asyncio.run(described(CurveKeys(folder).curve_to(PUBLIC, "gateway"), 60))
        if listed:
            assert asyncio.run(described(Curve.load(public, folder / CLIENTS / "alice.key_secret"), 60))
    finally:
        door.close()
        here.close()
