"""Actors that greet each other: who joins, who is lost and comes back, and which mail counts meanwhile."""

import time
from pathlib import Path

import msgspec
import pytest
from fakes.peers import BarePeer, progress, running, runtime, wait_for

from noria.proto.base import Service, Stream
from noria.proto.lifecycle import Heartbeat, Hello, State
from noria.proto.output import TokenRun, Tokens
from noria.shared.config.config import RuntimeSettings

A, B = Service.SCHEDULER, Service.DETOKENIZER
TOKENS = Tokens((TokenRun(Stream(1, 0), 0, 0, (1, 2, 3)),))


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
        assert one.counts() == {"dropped": 0, "malformed": 0, "gaps": 0, "outbox": 0}


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
        peer.hello(shell.incarnation, answer=True)
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
        peer.send(progress(1), shell.incarnation)
        wait_for(lambda: len(shell.received) == 1)
        former = peer.incarnation
        peer.incarnation += 2
        peer.hello()
        wait_for(lambda: shell.joins == [B, B])
        peer.send(progress(2), shell.incarnation, incarnation=former)
        peer.send(Hello(1, State.READY), 0, incarnation=former)
        peer.send(progress(3), shell.incarnation)
        wait_for(lambda: len(shell.received) == 2)
        assert shell.received == [progress(1), progress(3)]
        assert shell.joins == [B, B]
        assert shell.counts()["dropped"] == 1


def test_mail_for_a_former_life_of_ours_or_before_a_greeting_is_dropped(
    settings: RuntimeSettings, peer: BarePeer
) -> None:
    with running(settings, A, B) as shell:
        peer.send(progress(1), shell.incarnation)
        peer.hello(recipient=shell.incarnation + 2)
        peer.hello()
        wait_for(lambda: shell.joins == [B])
        peer.send(progress(2), shell.incarnation + 2)
        peer.send(progress(3), 0)
        peer.send(progress(4), shell.incarnation)
        wait_for(lambda: shell.received)
        assert shell.received == [progress(4)]
        assert shell.counts()["dropped"] == 3


def test_a_repeated_greeting_is_answered_and_joins_nobody_twice(settings: RuntimeSettings, peer: BarePeer) -> None:
    with running(settings, A, B) as shell:
        peer.bind()
        for _ in range(3):
            peer.hello()
            header, _ = peer.read_until(Hello)
            assert header.incarnation == shell.incarnation
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
        peer.send(progress(1), shell.incarnation)

        def heard_again() -> bool:
            # On a busy machine it may be given up once more between the two.
            peer.hello(shell.incarnation, answer=True)
            peer.send(progress(2), shell.incarnation)
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
        peer.send(progress(1), shell.incarnation)
        wait_for(lambda: shell.received)
        assert shell.joins == [B], "a greeting sent before it knew us is no sign of having forgotten us"
        peer.hello()
        wait_for(lambda: shell.joins == [B, B])
        peer.send(progress(2), shell.incarnation)
        wait_for(lambda: len(shell.received) == 2)
        assert peer.read_until(Tokens)[0].sequence == 1


def test_a_beating_heart_keeps_a_peer(tmp_path: Path) -> None:
    settings = runtime(tmp_path, heartbeat_s=0.02, peer_timeout_s=2.0)
    with running(settings, A, B) as one, running(settings, B, A) as other:
        wait_for(lambda: one.joins and other.joins)
        until = time.monotonic() + 2.5
        wait_for(lambda: time.monotonic() > until)
        assert one.losses == other.losses == []


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


@pytest.mark.parametrize("noticed_by", [progress(3), Heartbeat(State.READY)])
def test_lost_mail_makes_both_sides_tell_everything_again(
    settings: RuntimeSettings, peer: BarePeer, noticed_by: msgspec.Struct
) -> None:
    with running(settings, A, B) as shell:
        shell.at_join = lambda joined: [TOKENS]
        peer.bind()
        peer.hello()
        wait_for(lambda: shell.joins)
        peer.send(progress(1), shell.incarnation, sequence=1)
        peer.send(Heartbeat(State.READY), shell.incarnation, sequence=1)
        wait_for(lambda: shell.received == [progress(1)])
        assert peer.read_until(Tokens)[0].sequence == 1
        peer.send(noticed_by, shell.incarnation, sequence=3)
        while peer.read_until(Hello)[0].recipient:
            pass
        peer.hello(shell.incarnation, answer=True)
        wait_for(lambda: shell.joins == [B, B])
        assert peer.read_until(Tokens)[0].sequence == 1
        assert shell.received == [progress(1)]
        assert shell.counts()["gaps"] == 1


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
