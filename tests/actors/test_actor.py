"""Actors greet, notice who is new and who is gone, and survive what comes in."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import zmq
from fakes.peers import CODEC, BarePeer, Recorder, running, runtime, wait_for

from noria.proto.base import Header, Service, Stream
from noria.proto.lifecycle import Drain, Heartbeat, Hello, Inspect, Snapshot, State
from noria.proto.output import Gap, Progress, TokenRun, Tokens
from noria.shared.actor import Actor
from noria.shared.config import RuntimeSettings
from noria.shared.endpoints import mailbox, prepare_runtime_dir
from noria.shared.inspect import inspect
from noria.shared.mailbox import INSPECTOR_PREFIX, Mailbox

A, B = Service.SCHEDULER, Service.DETOKENIZER
TOKENS = Tokens((TokenRun(Stream(1, 0), 0, 0, (1, 2, 3)),))


def progress(number: int) -> Progress:
    return Progress((Gap(Stream(1, 0), number),))


@pytest.fixture
def settings(tmp_path: Path) -> RuntimeSettings:
    return runtime(tmp_path)


@pytest.fixture
def peer(settings: RuntimeSettings) -> Iterator[BarePeer]:
    bare = BarePeer(settings, B, A)
    yield bare
    bare.close()


def incarnation(shell: Recorder) -> int:
    assert shell.actor is not None
    return shell.actor.mailbox.incarnation


def counts(shell: Recorder) -> dict[str, int]:
    assert shell.actor is not None
    return shell.actor.mailbox.counts()


def test_two_actors_greet_each_other_and_exchange_mail_in_order(settings: RuntimeSettings) -> None:
    with running(settings, A, B) as one, running(settings, B, A) as other:
        wait_for(lambda: one.joins and other.joins)
        other.to_send += [(A, progress(number)) for number in range(500)]
        assert other.actor is not None
        other.actor.wake()
        wait_for(lambda: len(one.received) == 500)
        assert one.received == [progress(number) for number in range(500)]
        assert one.joins == [B]
        assert other.joins == [A]
        assert counts(one) == {"dropped": 0, "malformed": 0, "gaps": 0, "outbox": 0}


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
            peer.send(progress(number), incarnation(shell))
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


def test_who_was_ready_before_it_knew_whom_to_tell_says_so_in_its_next_greeting(
    settings: RuntimeSettings, peer: BarePeer
) -> None:
    with running(settings, A, B) as shell:
        assert shell.actor is not None
        link = shell.actor.mailbox.links[B]
        peer.bind()
        peer.send(Hello(1, State.STARTING))
        wait_for(lambda: shell.joins)
        assert link.state is State.STARTING
        peer.hello(incarnation(shell), answer=True)
        wait_for(lambda: link.state is State.READY)


def test_mail_sent_at_join_arrives_whichever_side_comes_first(tmp_path: Path) -> None:
    settings = runtime(tmp_path, heartbeat_s=0.05)
    for _ in range(3):
        with running(settings, A, B) as one:
            one.at_join = lambda peer: [TOKENS]
            with running(settings, B, A) as other:
                wait_for(lambda seen=other: TOKENS in seen.received)
            with running(settings, B, A) as again:
                wait_for(lambda seen=again: TOKENS in seen.received)


def test_mail_sent_at_join_waits_behind_the_greeting_for_a_peer_that_cannot_be_reached_yet(
    settings: RuntimeSettings, peer: BarePeer
) -> None:
    with running(settings, A, B) as shell:
        shell.at_join = lambda joined: [TOKENS]
        peer.hello()
        wait_for(lambda: shell.joins)
        peer.bind()
        header, body = peer.read()
        while isinstance(body, Heartbeat) or (isinstance(body, Hello) and header.recipient == 0):
            header, body = peer.read()
        assert isinstance(body, Hello), "whoever has not been greeted drops the mail"
        assert header.recipient == peer.incarnation
        header, body = peer.read_until(Tokens)
        assert (body, header.sequence) == (TOKENS, 1)


def test_a_peer_that_restarts_joins_again_and_mail_of_its_former_life_is_dropped(
    settings: RuntimeSettings, peer: BarePeer
) -> None:
    with running(settings, A, B) as shell:
        peer.bind()
        peer.hello()
        wait_for(lambda: shell.joins == [B])
        peer.send(progress(1), incarnation(shell))
        wait_for(lambda: len(shell.received) == 1)
        former = peer.incarnation
        peer.incarnation += 2
        peer.hello()
        wait_for(lambda: shell.joins == [B, B])
        peer.send(progress(2), incarnation(shell), incarnation=former)
        peer.send(Hello(1, State.READY), 0, incarnation=former)
        peer.send(progress(3), incarnation(shell))
        wait_for(lambda: len(shell.received) == 2)
        assert shell.received == [progress(1), progress(3)]
        assert shell.joins == [B, B]
        assert counts(shell)["dropped"] == 1


def test_mail_for_a_former_life_of_ours_or_before_a_greeting_is_dropped(
    settings: RuntimeSettings, peer: BarePeer
) -> None:
    with running(settings, A, B) as shell:
        peer.send(progress(1), incarnation(shell))
        peer.hello(recipient=incarnation(shell) + 2)
        peer.hello()
        wait_for(lambda: shell.joins == [B])
        peer.send(progress(2), incarnation(shell) + 2)
        peer.send(progress(3), 0)
        peer.send(progress(4), incarnation(shell))
        wait_for(lambda: shell.received)
        assert shell.received == [progress(4)]
        assert counts(shell)["dropped"] == 3


def test_a_repeated_greeting_is_answered_and_joins_nobody_twice(settings: RuntimeSettings, peer: BarePeer) -> None:
    with running(settings, A, B) as shell:
        peer.bind()
        for _ in range(3):
            peer.hello()
            header, _ = peer.read_until(Hello)
            assert header.incarnation == incarnation(shell)
        assert shell.joins == [B]


def test_a_silent_peer_is_lost(tmp_path: Path) -> None:
    settings = runtime(tmp_path, heartbeat_s=0.02, peer_timeout_s=0.2)
    with running(settings, A, B) as shell:
        peer = BarePeer(settings, B, A)
        peer.bind()
        peer.hello()
        wait_for(lambda: shell.joins)
        wait_for(lambda: shell.losses == [B])
        shell.to_send.append((B, TOKENS))
        assert shell.actor is not None
        shell.actor.wake()
        wait_for(lambda: shell.sent)
        assert shell.sent == [False]
        assert shell.refused == []
        peer.close()


def test_a_peer_that_was_given_up_and_comes_back_joins_again(tmp_path: Path) -> None:
    settings = runtime(tmp_path, heartbeat_s=0.02, peer_timeout_s=0.2)
    with running(settings, A, B) as shell:
        peer = BarePeer(settings, B, A)
        peer.bind()
        peer.hello()
        wait_for(lambda: shell.losses == [B])
        peer.send(progress(1), incarnation(shell))

        def heard_again() -> bool:
            # On a busy machine it may be given up once more between the two.
            peer.hello(incarnation(shell), answer=True)
            peer.send(progress(2), incarnation(shell))
            return bool(shell.received)

        wait_for(heard_again)
        assert shell.joins[:2] == [B, B]
        assert progress(1) not in shell.received
        peer.close()


def test_a_peer_that_gave_us_up_is_told_everything_again(settings: RuntimeSettings, peer: BarePeer) -> None:
    with running(settings, A, B) as shell:
        shell.at_join = lambda joined: [TOKENS]
        peer.bind()
        peer.hello()
        assert peer.read_until(Tokens)[0].sequence == 1
        peer.hello()
        peer.send(progress(1), incarnation(shell))
        wait_for(lambda: shell.received)
        assert shell.joins == [B], "a greeting sent before it knew us is no sign of having forgotten us"
        peer.hello()
        wait_for(lambda: shell.joins == [B, B])
        peer.send(progress(2), incarnation(shell))
        wait_for(lambda: len(shell.received) == 2)
        assert peer.read_until(Tokens)[0].sequence == 1


def test_a_beating_heart_keeps_a_peer(tmp_path: Path) -> None:
    settings = runtime(tmp_path, heartbeat_s=0.02, peer_timeout_s=2.0)
    with running(settings, A, B) as one, running(settings, B, A) as other:
        wait_for(lambda: one.joins and other.joins)
        until = time.monotonic() + 2.5
        wait_for(lambda: time.monotonic() > until)
        assert one.losses == other.losses == []


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
        assert 0 < counts(shell)["outbox"] <= 40, "what the socket has taken since has made room"
        assert len(shell.refused) == 400 - taken > 0
        turns = shell.turns
        sequences = [peer.read_until(Tokens)[0].sequence for _ in range(taken)]
        assert sequences == list(range(1, taken + 1))
        wait_for(lambda: counts(shell)["outbox"] == 0)
        assert shell.turns > turns
        shell.to_send.append((B, TOKENS))
        shell.actor.wake()
        assert peer.read_until(Tokens)[1] == TOKENS
        peer.close()


def test_what_waited_for_a_dead_peer_is_not_sent_to_its_successor(settings: RuntimeSettings, peer: BarePeer) -> None:
    with running(settings, A, B) as shell:
        peer.hello()
        wait_for(lambda: shell.joins)
        shell.to_send.append((B, TOKENS))
        assert shell.actor is not None
        shell.actor.wake()
        wait_for(lambda: shell.sent == [True])
        peer.incarnation += 2
        peer.hello()
        wait_for(lambda: len(shell.joins) == 2)
        peer.bind()
        shell.to_send.append((B, Tokens(())))
        shell.actor.wake()
        header, body = peer.read_until(Tokens)
        assert (body, header.sequence, header.recipient) == (Tokens(()), 1, peer.incarnation)


def test_garbage_on_the_mailbox_is_counted_and_does_no_harm(settings: RuntimeSettings, peer: BarePeer) -> None:
    chance = random.Random(3)
    with running(settings, A, B) as shell:
        peer.hello()
        wait_for(lambda: shell.joins)
        for _ in range(200):
            frames = [chance.randbytes(chance.randint(0, 40)) for _ in range(chance.randint(1, 12))]
            peer.dealer.send_multipart(frames)
        for body in (TOKENS, Drain(1), Heartbeat(State.READY)):
            peer.send(body, incarnation(shell), sender="executor")
        peer.send(TOKENS, incarnation(shell))
        peer.send(Drain(1), incarnation(shell))
        peer.send(progress(7), incarnation(shell))
        wait_for(lambda: shell.received)
        assert shell.received == [progress(7)]
        assert shell.drained == []
        assert counts(shell)["malformed"] == 205
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
                    header = Header(type(body).__name__, sender, 5, incarnation(shell))
                    socket.send_multipart([msgspec.msgpack.encode(header), msgspec.msgpack.encode(body)])
            expected = counts(shell)["malformed"]
            wait_for(lambda before=expected: counts(shell)["malformed"] >= before)
            wait_for(lambda count=routing_id: counts(shell)["malformed"] >= 8)
            socket.close(0)
        assert shell.joins == shell.received == []


@pytest.mark.parametrize("noticed_by", [progress(3), Heartbeat(State.READY)])
def test_lost_mail_makes_both_sides_tell_everything_again(
    settings: RuntimeSettings, peer: BarePeer, noticed_by: msgspec.Struct
) -> None:
    with running(settings, A, B) as shell:
        shell.at_join = lambda joined: [TOKENS]
        peer.bind()
        peer.hello()
        wait_for(lambda: shell.joins)
        peer.send(progress(1), incarnation(shell), sequence=1)
        peer.send(Heartbeat(State.READY), incarnation(shell), sequence=1)
        wait_for(lambda: shell.received == [progress(1)])
        assert peer.read_until(Tokens)[0].sequence == 1
        peer.send(noticed_by, incarnation(shell), sequence=3)
        while peer.read_until(Hello)[0].recipient:
            pass
        peer.hello(incarnation(shell), answer=True)
        wait_for(lambda: shell.joins == [B, B])
        assert peer.read_until(Tokens)[0].sequence == 1
        assert shell.received == [progress(1)]
        assert counts(shell)["gaps"] == 1


def test_a_supervisor_can_ask_a_service_to_drain(settings: RuntimeSettings) -> None:
    with running(settings, A, Service.SUPERVISOR) as shell, running(settings, Service.SUPERVISOR, A) as supervisor:
        wait_for(lambda: shell.joins and supervisor.joins)
        supervisor.to_send.append((A, Drain(1500)))
        assert supervisor.actor is not None
        supervisor.actor.wake()
        wait_for(lambda: shell.drained == [1500])


def test_a_change_of_state_is_told_at_once(tmp_path: Path) -> None:
    settings = runtime(tmp_path, heartbeat_s=30)
    with running(settings, A, B) as one, running(settings, B, A) as other:
        one.present = State.STARTING
        wait_for(lambda: one.joins and other.joins)
        one.present = State.DRAINING
        assert one.actor is not None
        assert other.actor is not None
        one.actor.wake()
        link = other.actor.mailbox.links[A]
        wait_for(lambda: link.state is State.DRAINING)


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
from noria.shared.config import Config, RuntimeSettings
from noria.shared.process import run

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
        assert content["incarnation"] == f"{incarnation(shell):x}"
