"""One definition of the sampling parameters serves the wire, admission's checks, HTTP, the command line and the client."""

import math

import msgspec
import pytest

from noria.client.generate_request import Options
from noria.proto.sampling import Bounds, Sampling, parameters
from noria.services.gateway.api.request_bodies import (
    BODY_SAMPLING_PARAMETERS,
    ChatBody,
    CompletionBody,
    chat_body,
    sampling_parameters,
)


def test_every_parameter_has_a_description_and_every_number_a_range() -> None:
    for parameter in parameters().values():
        assert parameter.description.endswith("."), parameter.name
        # How few tokens an answer may have depends on how many it may have.
        assert not parameter.scalar or parameter.bounds is not None or parameter.name == "min_tokens", parameter.name


def test_every_default_is_in_its_range() -> None:
    for name, parameter in parameters().items():
        if parameter.bounds is not None and parameter.scalar and parameter.default is not None:
            assert not parameter.bounds.problem(name, parameter.default)


def test_the_client_takes_every_parameter_by_its_name() -> None:
    assert parameters().keys() <= Options.__annotations__.keys()


def test_http_bodies_have_a_field_for_every_parameter() -> None:
    names = {parameter.http_name for parameter in parameters().values()}
    assert names <= set(ChatBody.__struct_fields__)
    assert names <= set(CompletionBody.__struct_fields__)


def test_what_a_body_gives_reaches_the_wire_by_its_name_there() -> None:
    given = {
        "temperature": 0.5,
        "top_k": -1,
        "logit_bias": {"7": 1.5},
        "stop_token_ids": [3],
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
    }
    body = chat_body(msgspec.json.encode({"messages": [{"role": "user", "content": "hi"}], **given}))
    assert sampling_parameters(body) == {
        "temperature": 0.5,
        "top_k": -1,
        "logit_bias": {7: 1.5},
        "stop_token_ids": [3],
        "include_stop": True,
        "skip_special_tokens": False,
    }
    assert set(sampling_parameters(body)) <= set(BODY_SAMPLING_PARAMETERS)


def test_reserved_positions_are_no_parameters() -> None:
    assert "reserved_1" in Sampling.__struct_fields__
    assert "reserved_1" not in parameters()


@pytest.mark.parametrize(
    ("bounds", "inside", "outside", "words"),
    [
        (Bounds(0, 1), (0, 0.5, 1), (-0.1, 1.1, math.nan, math.inf), "between 0 and 1"),
        (Bounds(above=0, high=1), (1e-9, 1), (0, 1.1, math.nan), "above 0 and at most 1"),
        (Bounds(1), (1, 10**9), (0, -5, math.nan), "at least 1"),
        (Bounds(high=3), (3, -9), (4, math.nan, math.inf), "at most 3"),
        (
            Bounds(-(2**63), 2**64 - 1),
            (0, 2**64 - 1),
            (2**64,),
            "between -9223372036854775808 and 18446744073709551615",
        ),
    ],
)
def test_a_range_refuses_what_is_outside_and_says_so(
    bounds: Bounds, inside: tuple[float, ...], outside: tuple[float, ...], words: str
) -> None:
    assert not [value for value in inside if bounds.problem("x", value)]
    for value in outside:
        assert bounds.problem("x", value).startswith(f"x must be {words}, not ")
