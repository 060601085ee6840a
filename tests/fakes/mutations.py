"""Makes wrong messages from a seed: valid ones that are changed, cut, repeated, nested or falsified, and random bytes."""

import json
import random
from collections.abc import Sequence
from typing import Any

import msgspec
from contract.golden import example

from noria.proto.base import Header

NESTING = 3000
WEIRD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**63 - 1, -(2**63), 2**64 - 1, 0.5, -0.0, 1e308, float("nan"), float("inf"),
    "", "\0", "x" * 5000, "😀" * 50, "\ud7ff", "../../etc", "%s%n", "client-x", [], {}, [[]], [None] * 300, {"a": {"b": []}},
)  # fmt: skip


class Mutator:
    """A generator of wrong messages, values and bytes; everything follows from one seed."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)

    def value(self, tree: Any) -> Any:
        """Return a copy of a tree of lists, dicts and plain values in which one to three places are different."""
        for _ in range(self.draw.randint(1, 3)):
            tree = self._changed(tree)
        return tree

    def body(self, kind: type[msgspec.Struct]) -> bytes:
        """Return the body frame of a message of a kind, changed in its values or its bytes."""
        plain = msgspec.msgpack.decode(msgspec.msgpack.encode(example(kind, full=True)))
        if self.draw.random() < 0.6:
            return _packed(self.value(plain))
        return self.noise(_packed(plain))

    def noise(self, data: bytes) -> bytes:
        """Return bytes that are cut, flipped, repeated, deeply nested, or replaced by random ones."""
        draw = self.draw
        place = draw.randrange(len(data) + 1)
        match draw.randrange(6):
            case 0:
                return data[:place]
            case 1:
                return data[:place] + bytes([draw.randrange(256)]) + data[place + 1 :]
            case 2:
                return data + data[place:]
            case 3:
                return b"\x91" * draw.choice([10, NESTING, 100_000]) + data
            case 4:
                return (
                    draw.choice([b"\xdd", b"\xdf", b"\xc6", b"\xdb"]) + b"\xff\xff\xff\xff" + data
                )  # 4 G of something
            case _:
                return draw.randbytes(draw.randint(0, 300))

    def header(self, header: Header) -> bytes:
        """Return a header frame that is falsified, changed or noise."""
        draw = self.draw
        plain = list(msgspec.msgpack.decode(msgspec.msgpack.encode(header)))
        match draw.randrange(4):
            case 0:
                return self.noise(_packed(plain))
            case 1:
                return _packed(self.value(plain))
            case 2:
                plain[draw.randrange(2, 5)] = draw.getrandbits(62)
            case _:
                pass
        return _packed(plain)

    def frames(self, header: Header, kind: type[msgspec.Struct]) -> list[bytes]:
        """Return the frames of one wrong message; sometimes too few or too many."""
        draw = self.draw
        frames = [self.header(header), self.body(kind)]
        match draw.randrange(10):
            case 0:
                return frames[: draw.randint(0, 1)] or [b""]
            case 1:
                return frames + [draw.randbytes(10)] * draw.randint(1, 20)
            case _:
                return frames

    def json(self, body: Any) -> bytes:
        """Return a JSON body, changed in its values or its bytes."""
        draw = self.draw
        match draw.randrange(8):
            case 0:
                data = json.dumps(body).encode()
                place = draw.randrange(len(data))
                return (
                    data[:place]
                    + draw.choice([b"\xff", b"\x00", b"\\ud800", b"}", b"1e999", b"", b'"'])
                    + data[place + 1 :]
                )
            case 1:
                opening = draw.choice([b"[", b'{"a":'])
                return b'{"messages": ' + opening * draw.choice([100, NESTING, 50_000])
            case 2:
                key = draw.choice(["temperature", "seed", "max_tokens", "n", "logit_bias", "stop"])
                number = draw.choice(["9" * 400, "1e400", "-1e-400", "0x10", "NaN", "01", "1.", "+1"])
                return json.dumps({**body, "@": 0}).encode().replace(b'"@": 0', f'"{key}": {number}'.encode())
            case 3:
                return self.noise(json.dumps(body).encode())
            case _:
                return json.dumps(self.value(body)).encode()

    def _changed(self, tree: Any) -> Any:
        draw = self.draw
        if isinstance(tree, dict) and tree and draw.random() < 0.85:
            key = draw.choice(sorted(tree, key=str))
            match draw.randrange(8):
                case 0:
                    return {each: value for each, value in tree.items() if each != key}
                case 1:
                    return {**tree, draw.choice(["", "x", "n", "stop", "stream", "\0", "id"]): self._weird()}
                case _:
                    return {**tree, key: self._changed(tree[key])}
        if isinstance(tree, list | tuple) and tree and draw.random() < 0.85:
            copy = list(tree)
            place = draw.randrange(len(copy))
            match draw.randrange(8):
                case 0:
                    del copy[place]
                case 1:
                    copy.insert(place, self._weird())
                case 2:
                    copy *= draw.choice([2, 50])
                case _:
                    copy[place] = self._changed(copy[place])
            return copy
        return self._weird()

    def _weird(self) -> Any:
        return self.draw.choice(WEIRD)


def _packed(value: Any) -> bytes:
    try:
        return msgspec.msgpack.encode(value)
    except (msgspec.MsgspecError, OverflowError, UnicodeEncodeError):
        return b"\xc1"


HTTP_BODIES: Sequence[dict[str, Any]] = (
    {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2, "stop": ["a", "b"], "n": 2,
     "logprobs": True, "top_logprobs": 2, "logit_bias": {"5": 1.5}, "stream_options": {"include_usage": True}, "stream": True},
    {"model": "tiny", "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}], "max_completion_tokens": 1,
     "response_format": {"type": "text"}, "tools": [], "ttl_ms": 5000, "ttl_first_ms": 5000, "service_tier": "auto"},
    {"model": "tiny", "prompt": ["hello", "you"], "max_tokens": 2, "temperature": 0.5, "top_p": 0.9, "seed": 3, "top_k": 5,
     "min_p": 0.1, "presence_penalty": 0.1, "stop_token_ids": [3], "background": False},
    {"prompt": [[1, 2, 3], [4]], "max_tokens": 1, "stream": True, "echo": False, "repetition_penalty": 1.1},
)  # fmt: skip
