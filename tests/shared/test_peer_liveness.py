"""Greetings, heartbeats and silence on one mailbox, at times that the test says."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
import zmq
from fakes.peers import BarePeer, Recorder, runtime
from structlog.testing import capture_logs

from noria.proto.base import Header, Service
from noria.proto.lifecycle import WIRE_FORMAT, Drain, Heartbeat, Hello, State
from noria.proto.output import Progress
from noria.shared.actor.endpoints import mailbox, prepare_runtime_dir
from noria.shared.actor.mailbox import Mailbox
from noria.shared.actor.peer_liveness import PeerLiveness
from noria.shared.config.config import RuntimeSettings

A, B = Service.SCHEDULER, Service.DETOKENIZER
SECOND = 1_000_000_000
HEARTBEAT_NS, TIMEOUT_NS = SECOND // 2, 2 * SECOND
PEER = 5
"""The incarnation of the peer."""


@dataclass
class Party:
    """The liveness of a scheduler's peers, its shell, and a detokenizer that reads its mail."""

    box: Mailbox
    liveness: PeerLiveness
    shell: Recorder
    peer: BarePeer

    def hears(self, body: msgspec.Struct, sequence: int = 0, incarnation: int = PEER, recipient: int = 0) -> bool:
        """What the peer writes; True when it is the shell's."""
        header = Header(type(body).__name__, B.value, incarnation, recipient or self.box.incarnation, sequence)
        return self.liveness.handle(self.shell, header, body)

    def greeted(self) -> None:
        """The peer joins, and knows us."""
        assert not self.hears(Hello(1, State.READY, answer=True))
        assert self.shell.joins == [B]

    def told(self, kind: type[msgspec.Struct]) -> msgspec.Struct:
        """The next message of a kind that the peer is told."""
        return self.peer.read_until(kind)[1]


@pytest.fixture
def party(tmp_path: Path) -> Iterator[Party]:
    settings: RuntimeSettings = runtime(
        tmp_path, heartbeat_s=HEARTBEAT_NS / SECOND, peer_timeout_s=TIMEOUT_NS / SECOND, outbox_messages_max=16
    )
    prepare_runtime_dir(settings)
    peer = BarePeer(settings, B, A)
    peer.bind()
    box = Mailbox(A, mailbox(settings, A), {B: mailbox(settings, B)}, settings)
    assert box.links[B].socket.poll(60_000, zmq.POLLOUT), "not connected"
    yield Party(box, PeerLiveness(box, settings), Recorder(), peer)
    box.close()
    peer.close()


def test_who_is_absent_is_greeted_often_and_those_that_joined_are_looked_for_at_each_heartbeat(party: Party) -> None:
    assert party.liveness.due_ns == 0
    party.liveness.tick(party.shell, SECOND)
    assert party.liveness.due_ns == SECOND + SECOND // 10
    party.greeted()
    party.liveness.tick(party.shell, 2 * SECOND)
    assert party.liveness.due_ns == 2 * SECOND + HEARTBEAT_NS


def test_a_heartbeat_says_how_far_the_work_is_and_how_long_it_should_take(party: Party) -> None:
    party.greeted()
    party.liveness.tick(party.shell, SECOND)
    assert party.told(Heartbeat) == Heartbeat(State.READY, 0, False, expected_us=0)
    party.liveness.expected_us = lambda: 700
    party.liveness.tick(party.shell, 2 * SECOND)
    assert party.told(Heartbeat) == Heartbeat(State.READY, 0, False, expected_us=700)


def test_only_a_change_of_state_brings_the_next_heartbeat_forward(party: Party) -> None:
    party.liveness.state_changed(State.READY)
    party.greeted()
    party.liveness.tick(party.shell, SECOND)
    due_ns = party.liveness.due_ns
    party.liveness.state_changed(State.READY)
    assert party.liveness.due_ns == due_ns > SECOND
    party.liveness.state_changed(State.STARTING)
    assert party.liveness.due_ns == 0


def test_only_mail_of_the_life_that_joined_is_left_to_the_shell(party: Party) -> None:
    assert not party.hears(Progress(()), 1)
    party.greeted()
    assert not party.hears(Progress(()), 1, incarnation=PEER + 2)
    assert not party.hears(Progress(()), 1, recipient=party.box.incarnation + 2)
    assert not party.hears(Heartbeat(State.STOPPED, 3, True, expected_us=9))
    link = party.box.links[B]
    assert (link.state, link.progress, link.busy, link.expected_us) == (State.STOPPED, 3, True, 9)
    assert party.hears(Progress(()), 1)
    assert party.hears(Drain(1), 2)
    assert party.box.dropped == 3


def test_after_a_loss_nothing_is_taken_until_both_have_greeted_anew(party: Party) -> None:
    party.greeted()
    party.liveness.tick(party.shell, SECOND)
    assert not party.hears(Progress(()), 2), "the first is missing"
    assert party.liveness.due_ns == 0
    assert not party.hears(Progress(()), 3)
    party.hears(Hello(1, State.READY, answer=True))
    assert party.shell.joins == [B, B]
    assert party.hears(Progress(()), 1)


def test_a_peer_is_given_up_after_its_time_and_greeted_at_once(party: Party) -> None:
    party.greeted()
    heard_ns = party.box.links[B].last_heard_ns
    party.liveness.tick(party.shell, heard_ns + TIMEOUT_NS)
    assert party.shell.losses == []
    lost_ns = heard_ns + TIMEOUT_NS + HEARTBEAT_NS
    party.liveness.tick(party.shell, lost_ns)
    assert party.shell.losses == [B]
    assert not party.box.links[B].joined
    assert party.liveness.due_ns == lost_ns


def test_a_peer_of_another_wire_format_is_named_once_and_not_talked_to(party: Party) -> None:
    with capture_logs() as lines:
        for _ in range(3):
            assert not party.hears(Hello(4711, State.READY, wire_format=WIRE_FORMAT + 1))
        assert not party.hears(Progress(()), 1)
    (line,) = [line for line in lines if line["log_level"] == "error"]
    assert (line["peer"], line["pid"]) == (B.value, 4711)
    assert (line["wire_format"], line["own_wire_format"]) == (WIRE_FORMAT + 1, WIRE_FORMAT)
    assert party.shell.joins == [] and not party.box.links[B].joined
    party.hears(Hello(4712, State.READY), incarnation=PEER + 1)
    assert party.shell.joins == [B], "its successor of the right version joins"


def test_a_greeting_says_the_own_wire_format(party: Party) -> None:
    party.liveness.tick(party.shell, SECOND)
    assert party.told(Hello) == Hello(os.getpid(), State.READY, wire_format=WIRE_FORMAT)


def test_a_farewell_is_for_those_that_joined(party: Party) -> None:
    party.liveness.send_stopped()
    party.greeted()
    party.liveness.send_stopped()
    assert party.peer.read()[1] == Hello(os.getpid(), State.READY, answer=True)
    assert party.peer.read()[1] == Heartbeat(State.STOPPED)
