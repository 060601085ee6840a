"""The loop of an actor: its turns, its wakes, what it answers, and that it survives what comes in."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import zmq
from fakes.peers import CODEC, BarePeer, Recorder, progress, running, runtime, wait_for

from noria.proto.base import Header, Service, Stream
from noria.proto.lifecycle import Drain, Heartbeat, Hello, Inspect, Snapshot, State
from noria.proto.output import TokenRun, Tokens
from noria.shared.actor.actor import Actor
from noria.shared.actor.endpoints import mailbox, prepare_runtime_dir
from noria.shared.actor.inspect import inspect
from noria.shared.actor.mailbox import INSPECTOR_PREFIX, Mailbox
from noria.shared.config.config import RuntimeSettings

A, B = Service.SCHEDULER, Service.DETOKENIZER
TOKENS = Tokens((TokenRun(Stream(1, 0), 0, 0, (1, 2, 3)),))


class Settling(Recorder):
    """Says how much it has received, and how much of that its last turn has worked off."""

    worked_off = 0

    def advance(self, now_ns: int) -> int | None:
        self.worked_off = len(self.received)
        return super().advance(now_ns)

    def snapshot(self) -> dict[str, int]:
        return {"received": len(self.received), "worked off": self.worked_off}


def test_what_an_actor_tells_of_itself_is_what_it_stands_at_after_a_turn(
    settings: RuntimeSettings, peer: BarePeer
) -> None:
    prepare_runtime_dir(settings)
    shell = Settling()
    shell.actor = actor = Actor(Mailbox(A, mailbox(settings, A), {B: mailbox(settings, B)}, settings), settings)
    published: list[int] = []
    actor.each_turn(lambda now_ns: published.append(len(shell.received) - shell.worked_off))
    name = f"{INSPECTOR_PREFIX}test"
    inspector = zmq.Context.instance().socket(zmq.DEALER)
    inspector.setsockopt(zmq.ROUTING_ID, name.encode())
    inspector.connect(mailbox(settings, A))
    answers: list[dict[str, int]] = []
    try:
        peer.bind()
        peer.hello()
        while not shell.joins:
            actor.turn(shell)
        for number in range(20):
            peer.send(progress(number), shell.incarnation)
            inspector.send_multipart(CODEC.encode(Header("Inspect", name, 1), Inspect()))
        deadline = time.monotonic() + 60
        while min(len(answers), len(shell.received)) < 20 and time.monotonic() < deadline:
            actor.turn(shell)
            while inspector.poll(0):
                frames = inspector.recv_multipart()
                answer = CODEC.body(CODEC.header(frames), frames)
                assert isinstance(answer, Snapshot)
                answers.append(msgspec.json.decode(answer.json))
    finally:
        inspector.close(0)
        actor.stop()
        actor.run(shell)
    assert len(answers) == 20
    assert all(each["received"] == each["worked off"] for each in answers)
    assert not any(published)
    assert len(shell.received) == 20


def test_a_peer_that_does_not_read_fills_a_bounded_outbox_and_then_the_shell_is_told(tmp_path: Path) -> None:
    settings = runtime(tmp_path, high_water_mark=16, outbox_messages_max=40, peer_timeout_s=60)
    large = Tokens((TokenRun(Stream(1, 0), 0, 0, tuple(range(2**20, 2**20 + 20_000))),))
    with running(settings, A, B) as shell:
        peer = BarePeer(settings, B, A)
        peer.bind(receive_high_water_mark=1)
        peer.hello()
        wait_for(lambda: shell.joins)
        shell.to_send += [(B, large)] * 400
        assert shell.actor is not None
        shell.actor.wake()
        wait_for(lambda: len(shell.sent) == 400)
        taken = shell.sent.count(True)
        assert 0 < shell.counts()["outbox"] <= 40, "what the socket has taken since has made room"
        assert len(shell.refused) == 400 - taken > 0
        turns = shell.turns
        sequences = [peer.read_until(Tokens)[0].sequence for _ in range(taken)]
        assert sequences == list(range(1, taken + 1))
        wait_for(lambda: shell.counts()["outbox"] == 0)
        assert shell.turns > turns
        shell.to_send.append((B, TOKENS))
        shell.actor.wake()
        assert peer.read_until(Tokens)[1] == TOKENS
        peer.close()


def test_garbage_on_the_mailbox_is_counted_and_does_no_harm(settings: RuntimeSettings, peer: BarePeer) -> None:
    chance = random.Random(3)
    with running(settings, A, B) as shell:
        peer.hello()
        wait_for(lambda: shell.joins)
        for _ in range(200):
            frames = [chance.randbytes(chance.randint(0, 40)) for _ in range(chance.randint(1, 12))]
            peer.dealer.send_multipart(frames)
        for body in (TOKENS, Drain(1), Heartbeat(State.READY)):
            peer.send(body, shell.incarnation, sender="executor")
        peer.send(TOKENS, shell.incarnation)
        peer.send(Drain(1), shell.incarnation)
        peer.send(progress(7), shell.incarnation)
        wait_for(lambda: shell.received)
        assert shell.received == [progress(7)]
        assert shell.drained == []
        assert shell.counts()["malformed"] == 205
        assert inspect(settings, A, 60) is not None


def test_a_client_that_calls_itself_a_service_injects_nothing(settings: RuntimeSettings) -> None:
    """On an internal mailbox a routing id binds a sender to its own kinds; a stranger has none."""
    with running(settings, A, B) as shell:
        for routing_id in (b"client-1", b"gateway", b"inspector-x", b"scheduler", b"\xff\x00"):
            socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.ROUTING_ID, routing_id)
            socket.connect(mailbox(settings, A))
            for sender in ("scheduler", "admission", "detokenizer", routing_id.decode("latin1")):
                for body in (Hello(1, State.READY), progress(1)):
                    header = Header(type(body).__name__, sender, 5, shell.incarnation)
                    socket.send_multipart([msgspec.msgpack.encode(header), msgspec.msgpack.encode(body)])
            expected = shell.counts()["malformed"]
            wait_for(lambda before=expected: shell.counts()["malformed"] >= before)
            wait_for(lambda count=routing_id: shell.counts()["malformed"] >= 8)
            socket.close(0)
        assert shell.joins == shell.received == []


def test_a_supervisor_can_ask_a_service_to_drain(settings: RuntimeSettings) -> None:
    with running(settings, A, Service.SUPERVISOR) as shell, running(settings, Service.SUPERVISOR, A) as supervisor:
        wait_for(lambda: shell.joins and supervisor.joins)
        supervisor.to_send.append((A, Drain(1500)))
        assert supervisor.actor is not None
        supervisor.actor.wake()
        wait_for(lambda: shell.drained == [1500])


def test_wakes_from_many_threads_are_never_lost(settings: RuntimeSettings) -> None:
    with running(settings, A) as shell:
        assert shell.actor is not None
        actor = shell.actor
        for _ in range(50):
            before = shell.turns
            threads = [threading.Thread(target=actor.wake) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            wait_for(lambda turns=before: shell.turns > turns)


def test_waking_or_stopping_an_actor_that_has_ended_is_harmless(settings: RuntimeSettings) -> None:
    with running(settings, A) as shell:
        assert shell.actor is not None
    shell.actor.wake()
    shell.actor.stop()


def test_an_idle_actor_takes_few_turns(settings: RuntimeSettings) -> None:
    with running(settings, A, B) as one, running(settings, B, A) as other:
        wait_for(lambda: one.joins and other.joins)
        until = time.monotonic() + 0.2
        wait_for(lambda: time.monotonic() > until)
        before, begun = one.turns, time.monotonic()
        wait_for(lambda: time.monotonic() > begun + 0.5)
        assert one.turns - before <= 20 * (time.monotonic() - begun)


def test_a_watched_socket_calls_back_until_it_is_unwatched(settings: RuntimeSettings) -> None:
    reading, writing = os.pipe()
    calls: list[bytes] = []
    shell = Recorder()
    (Path(settings.dir)).mkdir(mode=0o700)
    shell.actor = Actor(Mailbox(A, mailbox(settings, A), {}, settings), settings)
    shell.actor.watch(reading, lambda: calls.append(os.read(reading, 1)))
    thread = threading.Thread(target=shell.actor.run, args=(shell,))
    thread.start()
    os.write(writing, b"x")
    wait_for(lambda: calls == [b"x"])
    shell.actor.stop()
    thread.join(60)
    shell.actor.unwatch(reading)
    os.close(reading)
    os.close(writing)


PROGRAM = """
import sys
sys.path.insert(0, {tests!r})
from fakes.peers import Recorder
from noria.proto.base import Service
from noria.shared.config.config import Config, RuntimeSettings
from noria.shared.process.service_process import run

def build(actor, telemetry):
    shell = Recorder()
    shell.actor = actor
    return shell

sys.exit(run(Service.SCHEDULER, Config(runtime=RuntimeSettings(dir={folder!r})), (), build))
"""


def test_sigterm_ends_a_service_in_order_and_sigint_does_not(tmp_path: Path) -> None:
    settings = runtime(tmp_path)
    program = PROGRAM.format(tests=str(Path(__file__).parents[1]), folder=settings.dir)
    process = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE)
    try:
        wait_for(lambda: inspect(settings, A, 0.2), 60)
        process.send_signal(signal.SIGINT)
        assert inspect(settings, A, 60) is not None
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()


def test_answers_to_inspectors_that_left_do_no_harm(settings: RuntimeSettings) -> None:
    with running(settings, A) as shell:
        for _ in range(20):
            assert inspect(settings, A, 0.0) is None
        snapshot = inspect(settings, A, 60)
        assert snapshot is not None
        content = msgspec.json.decode(snapshot.json)
        assert content["received"] == 0
        assert content["incarnation"] == f"{shell.incarnation:x}"
