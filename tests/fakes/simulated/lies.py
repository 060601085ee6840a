"""Wrong numbers from trusted peers: messages that keep to the protocol and are not true, from a seed."""

import random
from typing import Any, Final

import msgspec
from fakes.simulated.network import Frames

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


class Liar:
    """Changes one or two values of every so many messages between services. told: how many it changed."""

    def __init__(self, seed: int, rate: float) -> None:
        self.rate = rate
        self.told = 0
        self._draw = random.Random(seed)

    def alter(self, sender: bytes, frames: Frames) -> Frames:
        """A message as it arrives: mostly as it was sent."""
        if sender.decode("ascii", "replace") not in _NAMES or self._draw.random() >= self.rate:
            return frames
        header = _CODEC.header(frames)
        if header.kind in _SPARED:
            return frames
        for _ in range(_TRIES):
            changed = changed_body(frames[1], self._draw)
            try:
                _CODEC.body(header, [frames[0], changed])
            except FrameError:
                continue
            self.told += 1
            return [frames[0], changed, *frames[2:]]
        return frames


def changed_body(body: bytes, draw: random.Random) -> bytes:
    """A message's body with one or two values changed, each for one of its type where that is a number or a text."""
    tree = msgspec.msgpack.decode(body)
    for _ in range(draw.choice([1, 1, 2])):
        places = list(_places(tree))
        if not places:
            break
        parent, key = draw.choice(places)
        parent[key] = _another(parent[key], draw)
    try:
        return msgspec.msgpack.encode(tree)
    except OverflowError:
        return body


def _places(tree: Any) -> "list[tuple[list[Any], int]]":
    """Every value in lists of lists."""
    found = []
    if isinstance(tree, list):
        for key, value in enumerate(tree):
            found.append((tree, key))
            found += _places(value)
    return found


def _another(value: Any, draw: random.Random) -> Any:
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
