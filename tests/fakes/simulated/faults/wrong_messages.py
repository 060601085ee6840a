"""Corrupts messages between services from a seed: they decode, but their values are wrong."""

import random
from typing import Any, Final

import msgspec
from fakes.simulated.machine.network import Frames

from noria.proto import lifecycle
from noria.proto.base import Service
from noria.proto.wire import Codec, FrameError, every_kind

_CODEC: Final = Codec(every_kind())
_SPARED: Final = (lifecycle.Hello.__name__, lifecycle.Drain.__name__)
_NAMES: Final = frozenset(service.value for service in Service)
_NUMBERS: Final = (0, -1, 1, 2, 3, 255, 2**31, -(2**31), 2**53, 2**62, 2**63 - 1, -(2**63))
_FLOATS: Final = (0.0, -1.0, 1e-300, 1e308, float("inf"), float("-inf"), float("nan"))
_TRIES: Final = 8
_COPIES: Final = 40


class MessageCorrupter:
    """Changes one or two values in a share of the messages between services. changed: how many messages it changed."""

    def __init__(self, seed: int, rate: float) -> None:
        self.rate = rate
        self.changed = 0
        self._draw = random.Random(seed)

    def alter(self, sender: bytes, frames: Frames) -> Frames:
        """Return a message as it arrives: mostly as it was sent."""
        if sender.decode("ascii", "replace") not in _NAMES or self._draw.random() >= self.rate:
            return frames
        header = _CODEC.header(frames)
        if header.kind in _SPARED:
            return frames
        for _ in range(_TRIES):
            body = corrupted_body(frames[1], self._draw)
            try:
                _CODEC.body(header, [frames[0], body])
            except FrameError:
                continue
            self.changed += 1
            return [frames[0], body, *frames[2:]]
        return frames


def corrupted_body(body: bytes, draw: random.Random) -> bytes:
    """Return a message's body with one or two values changed, each for another of its type."""
    tree = msgspec.msgpack.decode(body)
    for _ in range(draw.choice([1, 1, 2])):
        places = list(_places(tree))
        if not places:
            break
        parent, key = draw.choice(places)
        parent[key] = _other_value(parent[key], draw)
    try:
        return msgspec.msgpack.encode(tree)
    except OverflowError:
        return body


def _places(tree: Any) -> "list[tuple[list[Any], int]]":
    """Return the place of every value in nested lists, as a list and an index."""
    found = []
    if isinstance(tree, list):
        for key, value in enumerate(tree):
            found.append((tree, key))
            found += _places(value)
    return found


def _other_value(value: Any, draw: random.Random) -> Any:
    match value:
        case bool():
            return not value
        case int():
            near = (value + 1, value - 1, value * 2, -value, value + draw.randint(-8, 8))
            return draw.choice(near if draw.random() < 0.6 else _NUMBERS)
        case float():
            return draw.choice((value * 2, -value, *_FLOATS))
        case str() | bytes():
            return value[: draw.randrange(len(value) + 1)] if draw.random() < 0.5 else value * 2
        case list():
            return _other_list(value, draw)
        case _:
            return value


def _other_list(value: list[Any], draw: random.Random) -> list[Any]:
    match draw.randrange(5):
        case 0:
            return value[:-1]
        case 1:
            return value[::-1]
        case 2:
            return value * 2
        case 3:
            return value[:1] * _COPIES
        case _:
            return []
