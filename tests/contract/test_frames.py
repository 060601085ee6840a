"""Frames that are not messages are refused with a reason, whatever they are."""

import contextlib
import random

import msgspec
import pytest
from contract.golden import KINDS, example

from noria.proto.base import Header, Service
from noria.proto.frontdoor import TO_ADMISSION, TO_CLIENT
from noria.proto.output import Texts, Tokens
from noria.proto.wire import FRAMES, ROUTES, Codec, FrameError, every_kind, inbound

CODEC = Codec(every_kind())
BODIES = [kind for kind in KINDS if kind is not Header]


def framed(kind: type[msgspec.Struct]) -> list[bytes]:
    return CODEC.encode(Header(kind.__name__, "scheduler", 1), example(kind, full=True))


def read(frames: list[bytes], codec: Codec = CODEC) -> msgspec.Struct:
    return codec.body(codec.header(frames), frames)


@pytest.mark.parametrize("kind", BODIES, ids=lambda kind: kind.__name__)
def test_every_message_survives_its_frames(kind: type[msgspec.Struct]) -> None:
    header = Header(kind.__name__, "scheduler", 2**62 - 1, 2**61, 5, "00-" + "a" * 32 + "-" + "b" * 16 + "-01")
    frames = CODEC.encode(header, example(kind, full=True))
    assert CODEC.header(frames) == header
    assert read(frames) == example(kind, full=True)


@pytest.mark.parametrize("kind", BODIES, ids=lambda kind: kind.__name__)
def test_a_message_cut_short_is_refused(kind: type[msgspec.Struct]) -> None:
    header, body = framed(kind)
    for cut in range(len(body)):
        if body[:cut]:
            with pytest.raises(FrameError, match="unreadable"):
                read([header, body[:cut]])
    for cut in range(len(header)):
        with pytest.raises(FrameError, match="unreadable header"):
            read([header[:cut], body])


@pytest.mark.parametrize("frames", [[], [b""], [b"\x90"], [b"\x90"] * (FRAMES + 1), [b"", b""], [b"\xc1", b"\x90"]])
def test_a_wrong_number_of_frames_or_an_empty_one_is_refused(frames: list[bytes]) -> None:
    with pytest.raises(FrameError):
        read(frames)


def test_a_kind_that_is_not_received_here_is_refused() -> None:
    with pytest.raises(FrameError, match="'Nonsense' is not received here"):
        read([msgspec.msgpack.encode(Header("Nonsense", "x", 1)), b"\x90"])
    with pytest.raises(FrameError, match="'Tokens' is not received here"):
        read(framed(Tokens), Codec(TO_ADMISSION))


def test_a_long_kind_is_not_repeated_at_length() -> None:
    with pytest.raises(FrameError) as caught:
        read([msgspec.msgpack.encode(Header("K" * 100_000, "x", 1)), b"\x90"])
    assert len(str(caught.value)) < 200


def test_surplus_bytes_after_a_message_are_refused() -> None:
    header, body = framed(Texts)
    with pytest.raises(FrameError, match="unreadable Texts"):
        read([header, body + b"\x00"])


def test_nesting_without_end_is_refused() -> None:
    header, _ = framed(Texts)
    for opener in (b"\x91", b"\x81\xa1a"):
        with pytest.raises(FrameError):
            read([header, opener * 200_000 + b"\x90"])
        with pytest.raises(FrameError):
            read([opener * 200_000 + b"\x90", b"\x90"])


def test_a_length_that_lies_allocates_nothing_and_is_refused() -> None:
    header, _ = framed(Texts)
    for lie in (b"\x91\xdd\xff\xff\xff\xff", b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff"):
        with pytest.raises(FrameError):
            read([header, lie])


@pytest.mark.parametrize("seed", range(8))
def test_random_and_damaged_bytes_give_a_message_or_a_frame_error(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(400):
        kind = chance.choice(BODIES)
        header, body = framed(kind)
        damaged = bytearray(body)
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        for frames in ([header, bytes(damaged)], [header, chance.randbytes(chance.randint(1, 60))]):
            with contextlib.suppress(FrameError):
                assert isinstance(read(frames), kind)
        with pytest.raises(FrameError):
            read([b"\xc1" + chance.randbytes(20), body])


def test_services_and_clients_speak_different_kinds() -> None:
    between = {kind for kinds in ROUTES.values() for kind in kinds}
    assert not between & {*TO_ADMISSION, *TO_CLIENT}


def test_nobody_writes_to_itself_and_a_mailbox_takes_only_what_its_senders_may_send() -> None:
    assert all(sender is not recipient for sender, recipient in ROUTES)
    for service in Service:
        for sender, kinds in inbound(service).items():
            assert set(ROUTES[Service(sender), service]) <= set(kinds)
    assert "executor" not in inbound(Service.ADMISSION)
    assert "gateway" not in inbound(Service.SCHEDULER)
