"""Turns the arguments of `generate` into a `Generate` message, checked against the types of the wire before anything is sent."""

import uuid
from collections.abc import Mapping, Sequence
from typing import Final, TypedDict

import msgspec

from noria.client.errors import Refused
from noria.proto.frontdoor import Code, Generate, Message
from noria.proto.sampling import Sampling

CHOICES_MAX: Final = 1024
_ENVELOPE: Final = (
    "model",
    "n",
    "ttl_ms",
    "ttl_first_ms",
    "credential",
    "traffic_class",
    "keep",
    "background",
    "grace_ms",
)
_DECODER: Final = msgspec.msgpack.Decoder(Generate)
_ENCODER: Final = msgspec.msgpack.Encoder()


class Options(TypedDict, total=False):
    """The keyword arguments of `generate` and `complete`; each has the wire's default where absent.

    request_id: the client's own name for the request, unique among its live ones; drawn where absent.
    traceparent: W3C trace context of the caller's span; that of OpenTelemetry's current span where absent.
    credential: an API key, where the stack has tenants. traffic_class: one of the classes that it may use.
    ttl_first_ms, ttl_ms: time to the first token, and to the end; what cannot keep them is refused or ends as `deadline`.
    keep: request_id is an idempotency key: asked for again, even after its end, the same answer comes and is charged once.
    background: it goes on to its end though nobody reads it, and is kept for a reader until the retention time is over.
    grace_ms: how long it goes on once the server has not heard from this client for a while; with `keep` to its end.
    logit_bias: by token id, or as pairs. logprobs: how many of the likeliest tokens to tell with each sampled one.
    All others are fields of `noria.proto.frontdoor.Generate` and `noria.proto.sampling.Sampling`.
    """

    request_id: str | None
    traceparent: str
    model: str
    n: int
    ttl_ms: int | None
    ttl_first_ms: int | None
    credential: str
    traffic_class: str
    keep: bool
    background: bool
    grace_ms: int | None
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int | None
    max_tokens: int | None
    min_tokens: int
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    include_stop: bool
    skip_special_tokens: bool
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: Mapping[int, float] | Sequence[tuple[int, float]]
    logprobs: int | None


def build_generate(
    prompt: str | None,
    messages: Sequence[Message | Mapping[str, str]] | None,
    token_ids: Sequence[int] | None,
    options: Options,
    *,
    bytes_max: int,
) -> Generate:
    """Make the message. Raises TypeError for unknown options and Refused for values that the wire cannot carry."""
    if sum(each is not None for each in (prompt, messages, token_ids)) != 1:
        raise TypeError("give exactly one of prompt, messages and token_ids")
    if unknown := options.keys() - Options.__annotations__.keys():
        raise TypeError(f"unknown options: {', '.join(sorted(unknown))}")
    try:
        generate = Generate(
            id=options.get("request_id") or uuid.uuid4().hex,
            prompt=prompt,
            messages=None if messages is None else tuple(_message(each) for each in messages),
            token_ids=None if token_ids is None else tuple(token_ids),
            sampling=_sampling(options),
            **{name: value for name, value in options.items() if name in _ENVELOPE},  # type: ignore[arg-type]  # checked below
        )
        encoded = _ENCODER.encode(generate)
        _DECODER.decode(encoded)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError) as error:
        parameter = _overflowing(options) if isinstance(error, OverflowError) else _parameter(error)
        raise Refused(Code.INVALID, _reason(error, parameter), parameter) from error
    if not 1 <= generate.n <= CHOICES_MAX:
        raise Refused(Code.INVALID, f"n must be between 1 and {CHOICES_MAX}, not {generate.n}", "n")
    if len(encoded) > bytes_max:
        raise Refused(Code.INVALID, f"the request has {len(encoded)} bytes; at most {bytes_max} can be sent")
    return generate


def _message(message: Message | Mapping[str, str]) -> Message:
    if isinstance(message, Message):
        return message
    return msgspec.convert(dict(message), _NamedMessage).message()


class _NamedMessage(msgspec.Struct, frozen=True):
    role: str
    content: str

    def message(self) -> Message:
        return Message(self.role, self.content)


def _sampling(options: Options) -> Sampling:
    values: dict[str, object] = {name: value for name, value in options.items() if name in Sampling.__struct_fields__}
    stop = values.get("stop", ())
    values["stop"] = (stop,) if isinstance(stop, str) else tuple(stop)  # type: ignore[arg-type]  # checked when encoded
    values["stop_token_ids"] = tuple(values.get("stop_token_ids", ()))  # type: ignore[arg-type]  # checked when encoded
    bias = values.get("logit_bias", ())
    values["logit_bias"] = tuple(bias.items()) if isinstance(bias, Mapping) else tuple(bias)  # type: ignore[arg-type]  # as above
    return Sampling(**values)  # type: ignore[arg-type]  # checked when encoded


def _reason(error: Exception, parameter: str) -> str:
    overflow = isinstance(error, OverflowError)
    reason = "a number does not fit into 64 bits" if overflow else str(error).partition(" - at ")[0]
    return f"{parameter}: {reason}" if parameter else reason


def _overflowing(options: Options) -> str:
    """The field with a number that does not fit 64 bits; without one, an id in a list did not."""
    bias = options.get("logit_bias", ())
    given = [*options.items(), *(("logit_bias", token) for token in bias if isinstance(token, int))]
    large = (name for name, value in given if isinstance(value, int) and not -(2**63) <= value < 2**63)
    return next(large, "token_ids")


def _parameter(error: Exception) -> str:
    """The field that a path like `$[5][1]` leads to."""
    place = str(error).partition(" - at `$")[2].rstrip("`")
    positions = [int(part) for part in place.replace("[", " ").replace("]", " ").split() if part.isdigit()]
    if not positions or positions[0] >= len(Generate.__struct_fields__):
        return ""
    name = Generate.__struct_fields__[positions[0]]
    if name == "sampling" and len(positions) > 1:
        return Sampling.__struct_fields__[positions[1]]
    return name
