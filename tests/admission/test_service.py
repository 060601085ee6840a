"""Admission's real shell over ipc: fake scheduler and detokenizer, raw clients, garbage, slow and silent readers."""

import queue
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
import zmq
from fakes.admission_bench import deltas, finishes, rules, token_request
from fakes.vocabularies import byte_level

from noria.proto import frontdoor
from noria.proto.base import End, Ended, Header, Service, Stream
from noria.proto.frontdoor import (
    Accepted,
    Acknowledge,
    Attach,
    Cancel,
    Code,
    Describe,
    Description,
    Generate,
    Malformed,
    Message,
    Ping,
    Pong,
    Rejected,
    Updates,
)
from noria.proto.lifecycle import State
from noria.proto.output import Open, TextRun, Texts
from noria.proto.sampling import Sampling
from noria.proto.scheduling import Capacity, ClassCapacity, Submit, Withdraw
from noria.proto.wire import Codec
from noria.services.admission.core.tenants.admission_limits import AdmissionLimits
from noria.services.admission.core.tenants.tenant_policy import TenantPolicy
from noria.services.admission.public_mailbox import PublicMailbox
from noria.services.admission.service import AdmissionService
from noria.services.admission.storage.database import AdmissionDatabase
from noria.services.admission.storage.usage_writer import TABLES, UsageWriter
from noria.services.admission.tokenizer_pool import TokenizerPool
from noria.shared.actor.actor import Actor
from noria.shared.actor.endpoints import mailbox, prepare_runtime_dir, public_mailbox
from noria.shared.actor.inspect import inspect
from noria.shared.actor.mailbox import Mailbox
from noria.shared.config.config import RuntimeSettings, TelemetrySettings
from noria.shared.model.chat_template import ChatTemplate
from noria.shared.telemetry.telemetry import Telemetry
from noria.shared.usage import database_path

PATIENCE_S = 60
MESSAGE_BYTES_MAX = 64 * 1024
TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
Body = TypeVar("Body", bound=msgspec.Struct)


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.002)


class Peer:
    """A neighbour of admission: keeps what it is told, sends what the test says."""

    def __init__(self, service: Service, settings: RuntimeSettings) -> None:
        address = mailbox(settings, service, binding=True)
        peers = {Service.ADMISSION: mailbox(settings, Service.ADMISSION)}
        self.actor = Actor(Mailbox(service, address, peers, settings), settings)
        self.heard: queue.Queue[msgspec.Struct] = queue.Queue()
        self.met = threading.Event()
        self._to_send: deque[msgspec.Struct] = deque()
        self._thread = threading.Thread(target=self.actor.run, args=(self,))
        self._thread.start()

    def post(self, body: msgspec.Struct) -> None:
        self._to_send.append(body)
        self.actor.wake()

    def expect(self, kind: type[Body]) -> Body:
        while True:
            body = self.heard.get(timeout=PATIENCE_S)
            if isinstance(body, kind):
                return body

    def stop(self) -> None:
        self.actor.stop()
        self._thread.join(10)

    def receive(self, sender: Service, header: Header, body: msgspec.Struct) -> None:
        self.heard.put(body)

    def joined(self, peer: Service) -> None:
        self.met.set()

    def advance(self, now_ns: int) -> int | None:
        while self._to_send:
            assert self.actor.send(self, Service.ADMISSION, self._to_send.popleft())
        return None

    def state(self) -> State:
        return State.READY

    def progress(self) -> tuple[int, bool]:
        return 0, False

    def snapshot(self) -> dict[str, Any]:
        return {}

    def lost(self, peer: Service) -> None: ...
    def congested(self, peer: Service) -> None: ...
    def drain(self, timeout_ms: int) -> None: ...
    def close(self) -> None: ...


class Client:
    """A bare socket to the public mailbox."""

    def __init__(self, endpoint: str, name: str, *, receive_high_water_mark: int = 1000, immediate: int = 0) -> None:
        self.name = name
        self._codec = Codec(frontdoor.TO_CLIENT)
        self.headers: list[Header] = []
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RCVHWM, receive_high_water_mark)
        self._socket.setsockopt(zmq.IMMEDIATE, immediate)
        self._socket.setsockopt(zmq.ROUTING_ID, name.encode())
        self._socket.connect(endpoint)

    def send(self, body: msgspec.Struct, *, recipient: int = 0, incarnation: int = 5) -> None:
        self.send_frames(self._codec.encode(Header(type(body).__name__, self.name, incarnation, recipient), body))

    def send_frames(self, frames: list[bytes]) -> None:
        self._socket.send_multipart(frames)

    def receive(self, timeout_s: float = PATIENCE_S) -> msgspec.Struct | None:
        if not self._socket.poll(int(timeout_s * 1000)):
            return None
        frames = self._socket.recv_multipart()
        header = self._codec.header(frames)
        self.headers.append(header)
        return self._codec.body(header, frames)

    def expect(self, kind: type[Body]) -> Body:
        while True:
            body = self.receive()
            assert body is not None, f"no {kind.__name__}"
            if isinstance(body, kind):
                return body

    def until_finished(self, count: int = 1) -> list[Updates]:
        got: list[Updates] = []
        while len(finishes(got)) < count:
            got.append(self.expect(Updates))
        return got

    def close(self) -> None:
        self._socket.close(0)


class Stack:
    """Admission between its fakes."""

    def __init__(
        self, folder: Path, peer_timeout_s: float = 15.0, policy: TenantPolicy | None = None, **changes: Any
    ) -> None:
        self.settings = RuntimeSettings(dir=str(folder), heartbeat_s=0.2, peer_timeout_s=peer_timeout_s)
        prepare_runtime_dir(self.settings)
        self.rules: AdmissionLimits = rules(
            **({"context_tokens": 2048, "requests_max": 1000, "tokenizing_characters_max": 10**6} | changes)
        )
        peers = {each: mailbox(self.settings, each) for each in (Service.SCHEDULER, Service.DETOKENIZER)}
        post = Mailbox(Service.ADMISSION, mailbox(self.settings, Service.ADMISSION, binding=True), peers, self.settings)
        self.incarnation = post.incarnation
        self.actor = Actor(post, self.settings)
        tokenizer = byte_level()
        template = ChatTemplate(TEMPLATE, tokenizer)
        self.endpoint = public_mailbox(self.settings, binding=True)
        self.shell = AdmissionService(
            self.actor,
            Telemetry(Service.ADMISSION, post.incarnation, TelemetrySettings()),
            PublicMailbox(self.endpoint, post.incarnation, MESSAGE_BYTES_MAX),
            TokenizerPool(tokenizer, template, self.actor.wake),
            self.rules,
            policy or TenantPolicy(),
            UsageWriter(AdmissionDatabase(database_path(self.settings), TABLES)),
        )
        self._failed: list[BaseException] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self.scheduler = Peer(Service.SCHEDULER, self.settings)
        self.detokenizer = Peer(Service.DETOKENIZER, self.settings)
        self.clients: list[Client] = []

    def ready(self) -> "Stack":
        assert self.scheduler.met.wait(PATIENCE_S) and self.detokenizer.met.wait(PATIENCE_S)
        # Whoever joins hears at once that there is nothing yet.
        assert self.scheduler.expect(Submit) == Submit((), complete=True)
        assert self.detokenizer.expect(Open) == Open((), complete=True)
        self.scheduler.post(Capacity(0, (ClassCapacity("", 1000, 1_000_000),), largest_tokens=2048, ready=True))
        wait_until(lambda: self.state()["waiting_for"] == [], "admission is not ready")
        return self

    def client(self, name: str, **options: int) -> Client:
        client = Client(self.endpoint, name, **options)
        self.clients.append(client)
        return client

    def state(self) -> dict[str, Any]:
        snapshot = inspect(self.settings, Service.ADMISSION, PATIENCE_S)
        assert snapshot is not None
        content: dict[str, Any] = msgspec.json.decode(snapshot.json)
        return content

    def idle(self) -> bool:
        counts = self.state()
        return not any(counts[key] for key in ("requests", "streams", "tokenizing", "attachments"))

    def submitted(self) -> Stream:
        return self.scheduler.expect(Submit).submissions[0].stream

    def emit(self, stream: Stream, start: int, text: str, end: int = 0) -> None:
        """One token that stands for the text, which begins where texts of the same length before it end."""
        self.detokenizer.post(Texts((TextRun(stream, 0, start, (start,), start * len(text), text, end),)))

    def ended(self, timeout_s: float) -> bool:
        """Whether admission has stopped, at the latest after this time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def stop(self) -> None:
        for client in self.clients:
            client.close()
        self.actor.stop()
        self._thread.join(10)
        self.scheduler.stop()
        self.detokenizer.stop()
        assert not self._failed

    def _run(self) -> None:
        try:
            self.actor.run(self.shell)
        except BaseException as error:  # shown by `stop` in the test's own thread
            self._failed.append(error)
            raise


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    made = Stack(tmp_path / "run")
    yield made.ready()
    made.stop()


@pytest.fixture
def impatient(tmp_path: Path) -> Iterator[Stack]:
    made = Stack(tmp_path / "run", client_timeout_ns=2_000_000_000)
    yield made.ready()
    made.stop()


@pytest.fixture
def brittle(tmp_path: Path) -> Iterator[Stack]:
    made = Stack(tmp_path / "run", peer_timeout_s=3.0)
    yield made.ready()
    made.stop()


def test_a_chat_is_tokenized_accepted_streamed_and_finished(stack: Stack) -> None:
    client = stack.client("client-a")
    client.send(Generate("r1", messages=(Message("user", "hello"),), sampling=Sampling(stop=("x",), seed=3)))
    accepted = client.expect(Accepted)
    submission = stack.scheduler.expect(Submit).submissions[0]
    opening = stack.detokenizer.expect(Open).openings[0]
    expected = byte_level().encode("user: hello\n", add_special_tokens=False)
    assert list(submission.prompt_ids) == expected
    assert accepted.prompt_tokens == len(expected)
    assert (submission.stream, submission.sampling.seed) == (Stream(accepted.request, 0), 3)
    assert opening.stop == ("x",)
    stack.emit(submission.stream, 0, "a")
    stack.emit(submission.stream, 1, "b", End.LENGTH)
    got = client.until_finished()
    assert "".join(each.text for each in deltas(got)) == "ab"
    assert stack.scheduler.expect(Ended).streams == (submission.stream,)
    assert stack.detokenizer.expect(Ended).streams == (submission.stream,)
    client.send(Acknowledge(("r1",)))
    wait_until(lambda: stack.idle() and stack.state()["retained"] == 0, "the request was not forgotten")
    assert {(each.incarnation, each.recipient) for each in client.headers} == {(stack.incarnation, 5)}
    assert [each.sequence for each in client.headers] == list(range(1, len(client.headers) + 1))


def test_a_client_learns_what_is_served_and_what_is_missing(tmp_path: Path) -> None:
    stack = Stack(tmp_path / "run")
    try:
        client = stack.client("client-a")
        assert stack.scheduler.met.wait(PATIENCE_S)
        client.send(Describe())
        assert "executor" in client.expect(Description).waiting_for
        client.send(token_request())
        assert client.expect(Rejected).code is Code.NOT_READY
        stack.ready()
        client.send(Describe(), recipient=stack.incarnation)
        assert client.expect(Description).waiting_for == ()
    finally:
        stack.stop()


def test_garbage_is_answered_and_the_door_stays_open(stack: Stack) -> None:
    client = stack.client("client-a")
    codec = Codec(())
    good = codec.encode(Header("Ping", "client-a", 5), Ping())
    draw = random.Random(1)
    garbage = [
        [b"", b""],
        [b"one frame"],
        [*good, b"a third frame"],
        [b"x"] * 20,
        [good[0], b"\xff\xff"],
        [good[0], b"\x81\xa1a\x01"],
        [b"\x90", good[1]],
        codec.encode(Header("Ping", "client-b", 5), Ping()),
        codec.encode(Header("Ping", "scheduler", 5), Ping()),
        codec.encode(Header("Ping", "client-a", 5, recipient=12345), Ping()),
        codec.encode(Header("Capacity", "client-a", 5), Capacity(0, ())),
        codec.encode(Header("Texts", "client-a", 5), Texts(())),
        codec.encode(Header("Inspect" * 1000, "client-a", 5), Ping()),
        [good[0], b"\x91" * 10_000],
        [b"\x91" * 10_000, good[1]],
        *([draw.randbytes(draw.randint(0, 60)), draw.randbytes(draw.randint(0, 60))] for _ in range(200)),
    ]
    for frames in garbage:
        client.send_frames(frames)
        assert len(client.expect(Malformed).reason) <= 512
    client.send(Ping())
    client.expect(Pong)
    assert stack.state()["malformed"] == len(garbage)


def test_bad_bodies_of_a_generate_are_malformed_or_rejected_never_fatal(stack: Stack) -> None:
    client = stack.client("client-a")
    encode = msgspec.msgpack.encode
    header = encode(Header("Generate", "client-a", 5))
    whole = msgspec.to_builtins(token_request("r1", tokens=3, max_tokens=4))
    draw = random.Random(2)
    values = [None, -1, 2**63, 1.5, float("nan"), float("inf"), "", "x" * 500, [], [[]], {"a": 1}, b"\xff", True]
    for number in range(300):
        body = [f"r{number}", *whole[1:]]
        body[draw.randrange(len(body))] = draw.choice(values)
        if draw.random() < 0.5:
            sampling = list(body[5]) if isinstance(body[5], list | tuple) else []
            if sampling:
                sampling[draw.randrange(len(sampling))] = draw.choice(values)
                body[5] = sampling
        client.send_frames([header, encode(body)])
        answer = client.receive()
        assert isinstance(answer, Accepted | Rejected | Malformed), answer
    client.send(Ping())
    client.expect(Pong)


@pytest.mark.parametrize("name", ["scheduler", "gateway", "client-", "client-\xff", "client-" + "x" * 58])
def test_who_is_no_client_is_not_served(stack: Stack, name: str) -> None:
    stranger = stack.client(name)
    stranger.send(Ping())
    friend = stack.client("client-a")
    wait_until(lambda: stack.state()["malformed"] == 1, "the stranger was not noticed")
    friend.send(Ping())
    friend.expect(Pong)
    assert stranger.receive(0.05) is None


def test_a_message_over_the_limit_closes_only_its_own_connection(stack: Stack) -> None:
    client, other = stack.client("client-a"), stack.client("client-b")
    client.send(Generate("r1", prompt="x" * (MESSAGE_BYTES_MAX + 1)))
    other.send(Ping())
    other.expect(Pong)
    client.send(Ping())
    client.expect(Pong)
    assert stack.state()["totals"]["accepted"] == 0


def test_a_duplicate_attaches_and_another_body_conflicts(stack: Stack) -> None:
    client = stack.client("client-a")
    client.send(token_request())
    number = client.expect(Accepted).request
    stack.emit(stack.submitted(), 0, "a")
    client.expect(Updates)
    client.send(token_request())
    assert client.expect(Accepted).request == number
    assert deltas([client.expect(Updates)])[0].text == "a"
    client.send(token_request(tokens=9))
    assert client.expect(Rejected).code is Code.CONFLICT


@pytest.mark.parametrize("state", ["tokenizing", "waiting", "running"])
def test_a_cancelled_request_ends_in_every_state(stack: Stack, state: str) -> None:
    client = stack.client("client-a")
    if state == "tokenizing":
        # On a machine that was busy elsewhere the prompt may be tokenized, and refused, before the second message is read.
        for _ in range(50):
            client.send(Generate("r1", prompt="ab " * 10_000))
            client.send(Cancel("r1"))
            if not isinstance(answer := client.receive(), Rejected):
                assert isinstance(answer, Accepted)
                break
    else:
        client.send(token_request())
        stream = stack.submitted()
        if state == "running":
            stack.emit(stream, 0, "a")
            client.expect(Updates)
        client.send(Cancel("r1"))
        assert stack.scheduler.expect(Withdraw).streams == (stream,)
        assert stack.scheduler.expect(Ended).streams == (stream,)
    (finished,) = finishes(client.until_finished())
    assert (finished.end, finished.output_tokens) == (End.CANCELLED, int(state == "running"))
    client.send(Cancel("r1"))
    client.send(Acknowledge(("r1",)))
    wait_until(stack.idle, "something of the request was left")


def test_a_slow_reader_holds_nobody_up_and_gets_everything_merged(stack: Stack) -> None:
    slow, fast = stack.client("client-slow", receive_high_water_mark=1), stack.client("client-fast")
    text, steps = "x" * 20_000, 400
    slow.send(token_request("slow"))
    first = stack.submitted()
    fast.send(token_request("fast"))
    second = stack.submitted()
    fast.expect(Accepted)
    for step in range(steps):
        end = End.LENGTH if step == steps - 1 else 0
        stack.emit(first, step, text, end)
        stack.emit(second, step, text, end)
        assert sum(len(each.text) for each in deltas([fast.expect(Updates)])) == len(text)
    wait_until(lambda: stack.state()["attachments"] == 1, "the slow reader should be behind, and only it")
    turns: list[int] = []
    stack.actor.each_turn(turns.append)
    begun_s = time.monotonic()
    wait_until(lambda: time.monotonic() > begun_s + 0.5, "half a second")
    assert len(turns) < 120 * (time.monotonic() - begun_s), "its socket was tried again and again"
    slow.expect(Accepted)
    got = slow.until_finished()
    pieces = deltas(got)
    assert len(got) < steps / 2
    assert [each.start for each in pieces] == [0, *(each.start + len(each.ids) for each in pieces[:-1])]
    assert "".join(each.text for each in pieces) == text * steps
    wait_until(stack.idle, "the slow reader's end was not delivered")


def test_a_vanished_clients_requests_are_cancelled_in_every_state(impatient: Stack) -> None:
    ghost = impatient.client("client-ghost")
    ghost.send(token_request("a"))
    ghost.send(Generate("b", prompt="ab " * 10_000))
    stream = impatient.submitted()
    impatient.emit(stream, 0, "a")
    ghost.expect(Accepted)
    ghost.close()
    assert stream in impatient.scheduler.expect(Withdraw).streams
    wait_until(impatient.idle, "the ghost left something behind")
    assert impatient.state()["clients"] == 0


def test_a_client_that_pings_is_not_taken_for_gone(impatient: Stack) -> None:
    client = impatient.client("client-a")
    client.send(token_request())
    stream = impatient.submitted()
    until_s = time.monotonic() + 2.5
    while time.monotonic() < until_s:
        client.send(Ping())
        client.expect(Pong)
        time.sleep(0.05)
    impatient.emit(stream, 0, "a", End.STOP)
    assert finishes(client.until_finished())[0].end is End.STOP


def test_another_connection_takes_a_stream_over(stack: Stack) -> None:
    first, second = stack.client("client-a"), stack.client("client-b")
    first.send(token_request())
    stream = stack.submitted()
    stack.emit(stream, 0, "a")
    first.expect(Updates)
    second.send(Attach("r1", (frontdoor.Have(0, 0, 1, 1),)))
    second.expect(Accepted)
    first.send(Cancel("r1"))
    first.send(Ping())
    first.expect(Pong)
    stack.emit(stream, 1, "b", End.STOP)
    got = second.until_finished()
    assert [(each.start, each.text) for each in deltas(got)] == [(1, "b")]


def test_clients_are_told_when_admission_stops(stack: Stack) -> None:
    client = stack.client("client-a")
    client.send(token_request())
    stream = stack.submitted()
    stack.emit(stream, 0, "a")
    client.expect(Updates)
    stack.actor.stop()
    (finished,) = finishes(client.until_finished())
    assert (finished.end, finished.detail) == (End.SHED, "the server is shutting down; try again")


def test_who_has_not_read_its_end_yet_is_waited_for_at_the_stop(stack: Stack) -> None:
    # Like our client library's: with IMMEDIATE a socket drops what is unread when the connection ends.
    client = stack.client("client-a", immediate=1)
    client.send(token_request())
    stack.emit(stack.submitted(), 0, "a")
    client.expect(Updates)
    stack.actor.stop()
    stack.ended(0.3)  # one that does not wait has closed its door by then
    (finished,) = finishes(client.until_finished())
    assert finished.end is End.SHED
    client.send(Acknowledge((finished.id,)))
    assert stack.ended(PATIENCE_S)


def test_restarted_peers_are_told_of_everything_unfinished(brittle: Stack) -> None:
    stack = brittle
    client = stack.client("client-a")
    client.send(token_request())
    stream = stack.submitted()
    stack.emit(stream, 0, "a")
    client.expect(Updates)
    for peer in (stack.scheduler, stack.detokenizer):
        peer.stop()
    wait_until(lambda: set(stack.state()["peers"].values()) == {"0"}, "the dead are not missed")
    stack.scheduler = Peer(Service.SCHEDULER, stack.settings)
    stack.detokenizer = Peer(Service.DETOKENIZER, stack.settings)
    submit, opened = stack.scheduler.expect(Submit), stack.detokenizer.expect(Open)
    assert submit.complete and opened.complete
    (submission,), (opening,) = submit.submissions, opened.openings
    assert (submission.stream, submission.output_ids) == (stream, (0,))
    assert (opening.stream, opening.output_ids, opening.characters) == (stream, (0,), 1)
    stack.emit(stream, 1, "b", End.STOP)
    assert finishes(client.until_finished())[0].output_tokens == 2


def test_many_streams_of_many_clients_end_complete_and_leave_nothing(stack: Stack) -> None:
    clients = [stack.client(f"client-{number}") for number in range(8)]
    for client in clients:
        for number in range(16):
            client.send(token_request(f"{client.name}.{number}"))
    streams: list[Stream] = []
    while len(streams) < 128:
        streams += [each.stream for each in stack.scheduler.expect(Submit).submissions]
    for step in range(10):
        end = End.LENGTH if step == 9 else 0
        stack.detokenizer.post(
            Texts(tuple(TextRun(stream, 0, step, (step,), step, "abcdefghij"[step], end) for stream in streams))
        )
    for client in clients:
        texts: dict[str, str] = {}
        for delta in deltas(client.until_finished(16)):
            texts[delta.id] = texts.get(delta.id, "") + delta.text
        assert texts == {f"{client.name}.{number}": "abcdefghij" for number in range(16)}
        client.send(Acknowledge(tuple(texts)))
    wait_until(lambda: stack.idle() and stack.state()["retained"] == 0, "something was left")
    totals = stack.state()["totals"]
    assert totals["accepted"] == totals["finished"] == 128
