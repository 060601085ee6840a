"""Frames: how a message becomes bytes and back, and who may send what to whom.

A message is a header frame and a body frame. `ROUTES` is the one table of
the stack's edges; a mailbox decodes only what it lists, so a client that calls itself `scheduler` can inject nothing.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from noria.proto import execution, frontdoor, lifecycle, output, scheduling
from noria.proto.base import Header, Service

FRAMES: Final = 2

ROUTES: Final[Mapping[tuple[Service, Service], tuple[type[msgspec.Struct], ...]]] = {
    (Service.ADMISSION, Service.SCHEDULER): scheduling.ADMISSION_TO_SCHEDULER,
    (Service.SCHEDULER, Service.ADMISSION): scheduling.SCHEDULER_TO_ADMISSION,
    (Service.SCHEDULER, Service.EXECUTOR): execution.SCHEDULER_TO_EXECUTOR,
    (Service.EXECUTOR, Service.SCHEDULER): execution.EXECUTOR_TO_SCHEDULER,
    (Service.SCHEDULER, Service.DETOKENIZER): output.SCHEDULER_TO_DETOKENIZER,
    (Service.DETOKENIZER, Service.SCHEDULER): output.DETOKENIZER_TO_SCHEDULER,
    (Service.DETOKENIZER, Service.ADMISSION): output.DETOKENIZER_TO_ADMISSION,
    (Service.ADMISSION, Service.DETOKENIZER): output.ADMISSION_TO_DETOKENIZER,
    (Service.GATEWAY, Service.SUPERVISOR): (),
    (Service.ADMISSION, Service.SUPERVISOR): (),
    (Service.SCHEDULER, Service.SUPERVISOR): (),
    (Service.EXECUTOR, Service.SUPERVISOR): (),
    (Service.DETOKENIZER, Service.SUPERVISOR): (),
    (Service.SUPERVISOR, Service.GATEWAY): (lifecycle.Drain,),
    (Service.SUPERVISOR, Service.ADMISSION): (lifecycle.Drain,),
    (Service.SUPERVISOR, Service.SCHEDULER): (lifecycle.Drain,),
    (Service.SUPERVISOR, Service.EXECUTOR): (lifecycle.Drain,),
    (Service.SUPERVISOR, Service.DETOKENIZER): (lifecycle.Drain,),
}

_EVERY: Final[tuple[type[msgspec.Struct], ...]] = tuple(
    dict.fromkeys(
        itertools.chain(
            *ROUTES.values(),
            frontdoor.TO_ADMISSION,
            frontdoor.TO_CLIENT,
            lifecycle.TO_SERVICE,
            lifecycle.FROM_INSPECTOR,
            lifecycle.TO_INSPECTOR,
        )
    )
)


class FrameError(ValueError):
    """What arrived is not a message this mailbox may receive; the text says why."""


class Codec:
    """Encodes any message of the protocol and decodes the kinds it was made for."""

    def __init__(self, kinds: Iterable[type[msgspec.Struct]]) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._header = msgspec.msgpack.Decoder(Header)
        self._bodies = {kind.__name__: msgspec.msgpack.Decoder(kind) for kind in kinds}

    def encode(self, header: Header, body: msgspec.Struct) -> list[bytes]:
        """Return the frames of one message."""
        return [self._encoder.encode(header), self._encoder.encode(body)]

    def header(self, frames: Sequence[bytes]) -> Header:
        """Decode the header frame alone. Raises FrameError when it cannot be read."""
        if len(frames) != FRAMES:
            raise FrameError(f"a message has {FRAMES} frames, this one has {len(frames)}")
        try:
            return self._header.decode(frames[0])
        except (msgspec.DecodeError, RecursionError) as error:
            raise FrameError(f"unreadable header: {error}") from error

    def body(self, header: Header, frames: Sequence[bytes]) -> msgspec.Struct:
        """Decode the body frame as the header's kind. Raises FrameError for a kind not listed or a bad body."""
        decoder = self._bodies.get(header.kind)
        if decoder is None:
            raise FrameError(f"kind {header.kind[:64]!r} is not received here")
        try:
            body = decoder.decode(frames[1])
        except (msgspec.DecodeError, RecursionError) as error:
            raise FrameError(f"unreadable {header.kind}: {error}") from error
        assert isinstance(body, msgspec.Struct)
        return body


def inbound(recipient: Service) -> Mapping[str, tuple[type[msgspec.Struct], ...]]:
    """The message kinds that a service's internal mailbox accepts, by the sender's routing id."""
    return {
        sender.value: (*kinds, *lifecycle.BETWEEN_SERVICES) for (sender, to), kinds in ROUTES.items() if to is recipient
    }


def every_kind() -> tuple[type[msgspec.Struct], ...]:
    """All message kinds, each once."""
    return _EVERY
