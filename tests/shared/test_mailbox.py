"""Links and mailboxes without an actor: what is sent, kept, counted and refused."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import zmq
from fakes.peers import runtime, wait_for

from noria.proto.base import Header, Service, Stream
from noria.proto.lifecycle import Heartbeat, Hello, State
from noria.proto.output import Gap, Progress, TokenRun, Tokens
from noria.shared.actor.endpoints import mailbox, prepare_runtime_dir
from noria.shared.actor.mailbox import Mailbox, draw_incarnation
from noria.shared.config.config import RuntimeSettings

A, B = Service.SCHEDULER, Service.DETOKENIZER
TOKENS = Tokens((TokenRun(Stream(1, 0), 0, 0, (1,)),))


@pytest.fixture
def settings(tmp_path: Path) -> RuntimeSettings:
    fields = runtime(tmp_path, outbox_messages_max=16)
    prepare_runtime_dir(fields)
    return fields


@pytest.fixture
def alone(settings: RuntimeSettings) -> Iterator[Mailbox]:
    """A scheduler whose detokenizer is not there."""
    box = Mailbox(A, mailbox(settings, A), {B: mailbox(settings, B)}, settings)
    yield box
    box.close()


def greeting(incarnation: int, recipient: int = 0) -> Header:
    return Header("Hello", B.value, incarnation, recipient)


def mail(box: Mailbox, incarnation: int, sequence: int, kind: str = "Progress") -> Header:
    return Header(kind, B.value, incarnation, box.incarnation, sequence)


def test_incarnations_differ_and_are_never_zero() -> None:
    drawn = {draw_incarnation() for _ in range(1000)}
    assert len(drawn) == 1000
    assert all(0 < incarnation < 2**62 for incarnation in drawn)


def test_the_socket_is_for_its_owner_alone(settings: RuntimeSettings, alone: Mailbox) -> None:
    path = mailbox(settings, A).removeprefix("ipc://")
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


def test_a_message_to_a_peer_that_has_not_joined_is_not_kept(alone: Mailbox) -> None:
    assert not alone.send(B, TOKENS)
    assert alone.counts()["outbox"] == 0


def test_the_outbox_is_bounded_and_a_refused_message_leaves_no_hole_in_the_numbers(alone: Mailbox) -> None:
    alone.accept_hello(greeting(5))
    taken = [alone.send(B, TOKENS) for _ in range(20)]
    assert taken == [True] * 16 + [False] * 4
    assert alone.counts()["outbox"] == 16
    assert alone.links[B].sequence == 16
    alone.accept_hello(greeting(7))
    assert alone.counts()["outbox"] == 0
    assert alone.links[B].sequence == 0


def test_a_life_that_was_followed_by_another_is_never_greeted_again(alone: Mailbox) -> None:
    assert alone.accept_hello(greeting(5))
    assert not alone.accept_hello(greeting(5))
    assert alone.accept_hello(greeting(7))
    assert not alone.accept_hello(greeting(5))
    assert not alone.is_current(mail(alone, 5, 1))
    assert alone.is_current(mail(alone, 7, 1))


def test_a_loss_shows_at_the_next_message_or_heartbeat_and_nowhere_else(alone: Mailbox) -> None:
    link = alone.links[B]
    for last, kind, missed in (
        (3, "Progress", False),
        (2, "Heartbeat", False),
        (4, "Progress", True),
        (3, "Heartbeat", True),
    ):
        link.reset()
        alone.accept_hello(greeting(9))
        assert alone.is_current(mail(alone, 9, 1))
        assert alone.is_current(mail(alone, 9, 2))
        assert alone.is_current(mail(alone, 9, 0, "Heartbeat"))
        assert alone.is_current(mail(alone, 9, last, kind))
        assert link.mail_lost is missed, (last, kind)


def test_what_waits_is_sent_in_order_once_the_peer_can_be_reached(settings: RuntimeSettings, alone: Mailbox) -> None:
    alone.accept_hello(greeting(5))
    alone.answer_hello(B, Hello(1, State.READY, True))
    for _ in range(3):
        assert alone.send(B, TOKENS)
    other = Mailbox(B, mailbox(settings, B), {A: mailbox(settings, A)}, settings)
    got: list[tuple[str, int]] = []

    def all_came() -> bool:
        alone.links[B].flush()
        got.extend((header.kind, header.sequence) for _, header, _ in other.receive(10))
        return len(got) == 4

    wait_for(all_came)
    other.close()
    assert got == [("Hello", 0), ("Tokens", 1), ("Tokens", 2), ("Tokens", 3)]


def test_late_greetings_of_an_earlier_life_do_not_shut_the_living_one_out(alone: Mailbox) -> None:
    link = alone.links[B]
    assert alone.accept_hello(greeting(5))
    link.reset()
    assert alone.accept_hello(greeting(6))
    assert not alone.accept_hello(greeting(5)), "it was known before"
    assert link.incarnation == 6


def test_a_peer_taken_for_dead_is_heard_again_once_its_supposed_successor_is_silent(alone: Mailbox) -> None:
    link = alone.links[B]
    assert alone.accept_hello(greeting(6))
    assert alone.accept_hello(greeting(5)), "late mail of a life that was never heard of"
    assert not alone.accept_hello(greeting(6))
    link.give_up()
    assert alone.accept_hello(greeting(6))
    assert not alone.accept_hello(greeting(5))


def test_no_more_mail_is_taken_at_once_than_asked_for(settings: RuntimeSettings, alone: Mailbox) -> None:
    other = Mailbox(B, mailbox(settings, B), {A: mailbox(settings, A)}, settings)
    wait_for(lambda: other.try_send(A, Hello(1, State.READY)))
    for _ in range(9):
        assert other.try_send(A, Heartbeat(State.READY))
    got: list[int] = []

    def all_came() -> bool:
        got.append(len(list(alone.receive(4))))
        assert got[-1] <= 4
        return sum(got) == 10

    wait_for(all_came)
    other.close()


def test_an_answer_to_an_inspector_that_is_gone_is_dropped(alone: Mailbox) -> None:
    alone.answer_inspector(b"inspector-gone", Heartbeat(State.READY))
    assert alone.counts()["dropped"] == 1


def test_a_burst_beyond_the_socket_waits_and_arrives_whole(settings: RuntimeSettings, alone: Mailbox) -> None:
    other = Mailbox(B, mailbox(settings, B), {A: mailbox(settings, A)}, settings)
    other.accept_hello(Header("Hello", A.value, alone.incarnation))
    alone.accept_hello(greeting(other.incarnation))
    body = Progress(tuple(Gap(Stream(number, 0), number) for number in range(256)))
    wait_for(lambda: other.try_send(A, Hello(1, State.READY)))
    sent = sum(other.send(A, body) for _ in range(900))
    count = 0
    while count < sent + 1:
        assert alone.router.poll(60_000, zmq.POLLIN)
        count += sum(1 for _ in alone.receive(256))
        other.links[A].flush()
    assert alone.counts()["gaps"] == 0
    other.close()


def test_a_header_survives_as_it_was_written(settings: RuntimeSettings, alone: Mailbox) -> None:
    other = Mailbox(B, mailbox(settings, B), {A: mailbox(settings, A)}, settings)
    other.accept_hello(Header("Hello", A.value, alone.incarnation))
    context = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    assert other.send(A, Progress(()), context)
    found: list[tuple[Header, msgspec.Struct]] = []

    def came() -> bool:
        other.links[A].flush()
        found.extend((header, body) for _, header, body in alone.receive(1))
        return bool(found)

    wait_for(came)
    other.close()
    assert found == [(Header("Progress", B.value, other.incarnation, alone.incarnation, 1, context), Progress(()))]


def test_a_link_whose_name_somebody_else_has_used_works_again_once_the_silence_is_noticed(
    settings: RuntimeSettings, alone: Mailbox
) -> None:
    other = Mailbox(B, mailbox(settings, B), {A: mailbox(settings, A)}, settings)
    got: list[str] = []

    def heard(kind: str) -> bool:
        got.extend(header.kind for _, header, _ in other.receive(10))
        return kind in got

    wait_for(lambda: alone.try_send(B, Hello(1, State.READY)))
    wait_for(lambda: heard("Hello"))
    thief = zmq.Context.instance().socket(zmq.DEALER)
    thief.setsockopt(zmq.LINGER, 0)
    thief.setsockopt(zmq.ROUTING_ID, A.value.encode())
    thief.connect(mailbox(settings, B))
    thief.send_multipart([b"", b""])
    wait_for(lambda: heard("nothing") or other.malformed)
    thief.close(0)
    got.clear()
    for _ in range(3):
        alone.try_send(B, Heartbeat(State.READY))
    alone.links[B].give_up()
    wait_for(lambda: alone.try_send(B, Hello(1, State.READY)) and heard("Hello"))
    other.close()


def test_what_is_sent_right_after_a_new_connection_was_begun_arrives(settings: RuntimeSettings, alone: Mailbox) -> None:
    other = Mailbox(B, mailbox(settings, B), {A: mailbox(settings, A)}, settings)
    link, sent, got = alone.links[B], 0, 0

    def arrived() -> bool:
        nonlocal got
        link.flush()
        got += sum(header.kind == "Tokens" for _, header, _ in other.receive(100))
        return got == sent

    try:
        other.accept_hello(Header("Hello", A.value, alone.incarnation))
        alone.accept_hello(Header("Hello", B.value, other.incarnation))
        for _ in range(40):
            assert alone.send(B, TOKENS)
            sent += 1
            wait_for(arrived)
            link.reconnect()
    finally:
        other.close()
