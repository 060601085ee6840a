"""The sampling parameters of a request, each defined here once: type, default, range and meaning.

Admission's range checks, the HTTP bodies, the command line's flags and docs/sampling.md read this definition. A new
parameter is a field at the end of `Sampling` and a key of `noria.client.generate_request.Options`; one that changes
which token is drawn is also a column of the executor's sampling parameters and a step in each of its three samplers.
"""

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Final, get_args, get_type_hints

import msgspec
from msgspec import Meta

TEMPERATURE_MIN: Final = 0.01
"""The lowest temperature above 0 that is sampled with; lower ones are raised to it, so that logits do not overflow."""

LOGPROBS_MAX: Final = 20
"""The most log-probabilities that may be asked for with each token, as in OpenAI's API."""


class Bounds(msgspec.Struct, frozen=True):
    """The range of a parameter's value, or of each value in a list; None leaves that side open.

    above: exclusive lower bound. low: inclusive lower bound. high: inclusive upper bound. advice: how an error ends.
    """

    low: float | None = None
    high: float | None = None
    above: float | None = None
    advice: str = ""

    def problem(self, name: str, value: float) -> str:
        """What is wrong with a value, as a sentence for the client; empty when it is in range. NaN never is."""
        low_ok = (self.low is None or value >= self.low) and (self.above is None or value > self.above)
        if low_ok and (self.high is None or value <= self.high):
            return ""
        advice = f"; {self.advice}" if self.advice else ""
        return f"{name} must be {self}, not {value if isinstance(value, int) else format(value, 'g')}{advice}"

    def __str__(self) -> str:
        """The range in words, as in `between 0 and 1`."""
        low, high, above = (None if each is None else _number(each) for each in (self.low, self.high, self.above))
        if above is not None:
            return f"above {above}" if high is None else f"above {above} and at most {high}"
        if high is None:
            return f"at least {low}"
        return f"at most {high}" if low is None else f"between {low} and {high}"


def _field(description: str, bounds: Bounds | None = None, http: str = "") -> Meta:
    # The bounds are no `ge` and `le` of msgspec: those would refuse the whole message as unreadable, and neither name
    # the parameter nor stop NaN.
    return Meta(description=description, extra={"bounds": bounds, "http": http})


class Sampling(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """How one stream turns logits into tokens and when it ends. The executor samples by the same parameters.

    The order of the fields is their order on the wire and in the journal: fields are appended, never moved or reused.
    """

    temperature: Annotated[
        float,
        _field(
            "Divides the logits before sampling; 0 takes the likeliest token.", Bounds(0, 100, advice="0 is greedy")
        ),
    ] = 1.0
    top_p: Annotated[
        float,
        _field(
            "Sample among the likeliest tokens that have this much probability together; 1 is off.",
            Bounds(above=0, high=1, advice="1 turns it off"),
        ),
    ] = 1.0
    top_k: Annotated[
        int,
        _field(
            "Sample among this many of the likeliest tokens; 0 or -1 is off.", Bounds(-1, advice="0 or -1 turns it off")
        ),
    ] = 0
    min_p: Annotated[
        float,
        _field(
            "Drop tokens less likely than this share of the likeliest; 0 is off.",
            Bounds(0, 1, advice="0 turns it off"),
        ),
    ] = 0.0
    seed: Annotated[
        int | None,
        _field(
            "Makes a sampled answer repeatable: randomness depends on seed and position alone. Drawn where absent.",
            Bounds(-(2**63), 2**64 - 1, advice="it is a 64-bit integer"),
        ),
    ] = None
    max_tokens: Annotated[
        int | None,
        _field(
            "Longest answer in tokens; the rest of the context where absent.", Bounds(1, advice="leave it out for all")
        ),
    ] = None
    min_tokens: Annotated[
        int,
        _field("Shortest answer in tokens: before that, end tokens are banned and stop strings not looked for."),
    ] = 0
    stop: Annotated[tuple[str, ...], _field("Texts that end the answer; none is part of it.")] = ()
    stop_token_ids: Annotated[
        tuple[int, ...], _field("Token ids that end the answer; the id is returned, its text is not.")
    ] = ()
    ignore_eos: Annotated[bool, _field("Go on past the model's end-of-sequence tokens.")] = False
    include_stop: Annotated[bool, _field("Leave the stop string in the answer.", http="include_stop_str_in_output")] = (
        False
    )
    skip_special_tokens: Annotated[bool, _field("Leave the model's special tokens out of the text.")] = True
    presence_penalty: Annotated[
        float,
        _field(
            "Subtracted from the logit of each token that is in the answer; 0 is off.",
            Bounds(-2, 2, advice="0 turns it off"),
        ),
    ] = 0.0
    frequency_penalty: Annotated[
        float,
        _field(
            "Subtracted from a token's logit for each time that it is in the answer; 0 is off.",
            Bounds(-2, 2, advice="0 turns it off"),
        ),
    ] = 0.0
    repetition_penalty: Annotated[
        float,
        _field(
            "Divides positive logits of tokens in prompt and answer, multiplies negative ones; 1 is off.",
            Bounds(above=0, high=100, advice="1 turns it off"),
        ),
    ] = 1.0
    logit_bias: Annotated[
        tuple[tuple[int, float], ...],
        _field("Token ids and what is added to the logit of each.", Bounds(-100, 100)),
    ] = ()
    logprobs: Annotated[
        int | None,
        _field(
            "How many of the likeliest tokens to tell with each token and its own log-probability; none where absent.",
            Bounds(0, LOGPROBS_MAX),
        ),
    ] = None
    reserved_1: Annotated[
        str, _field("Once `grammar`. This position is never used again; whoever fills it is refused.")
    ] = ""


class SamplingParameter(msgspec.Struct, frozen=True):
    """One sampling parameter as `Sampling` defines it.

    name: of the field. http_name: in the bodies of HTTP requests. type: without its annotations. default: where absent.
    """

    name: str
    http_name: str
    type: Any
    default: Any
    description: str
    bounds: Bounds | None

    @property
    def scalar(self) -> bool:
        """Whether its value is a single number, perhaps absent."""
        return self.type in (int, float) or set(get_args(self.type)) in ({int, type(None)}, {float, type(None)})

    @property
    def integer(self) -> bool:
        """Whether its value is a single whole number, perhaps absent."""
        return self.type is int or int in get_args(self.type)


@cache
def parameters() -> Mapping[str, SamplingParameter]:
    """Every sampling parameter by the name of its field, in wire order; reserved positions are left out."""
    annotated, plain = get_type_hints(Sampling, include_extras=True), get_type_hints(Sampling)
    found = {}
    for field in msgspec.structs.fields(Sampling):
        if field.name.startswith("reserved_"):
            continue
        meta = next(each for each in annotated[field.name].__metadata__ if isinstance(each, Meta))
        extra = meta.extra or {}
        found[field.name] = SamplingParameter(
            field.name,
            extra["http"] or field.name,
            plain[field.name],
            field.default,
            meta.description or "",
            extra["bounds"],
        )
    return found


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else format(value, "g")
