"""Requests refused for what they contain: each range, count and combination, with the parameter's name and advice."""

from typing import Any

import pytest
from fakes.admission_bench import rules

from noria.proto.frontdoor import Code, Generate, Message
from noria.proto.sampling import Sampling
from noria.services.admission.core.intake.validation import id_problem, problem

NAN, INF = float("nan"), float("inf")
CHAT = (Message("user", "hi"),)


def sampled(**changes: Any) -> Generate:
    return Generate("r", prompt="hello", sampling=Sampling(**changes))


@pytest.mark.parametrize(
    "body",
    [
        Generate("r", prompt="hello"),
        Generate("r", model="smaller", messages=CHAT),
        Generate("r", token_ids=(0, 999), n=4, ttl_ms=1, ttl_first_ms=2**31, credential="secret", traffic_class="x"),
        sampled(temperature=0.0, top_p=1.0, top_k=-1, min_p=1.0, seed=2**64 - 1),
        sampled(temperature=100.0, top_p=1e-9, top_k=10**9, min_p=0.0, seed=-(2**63)),
        sampled(max_tokens=1, min_tokens=1, stop=("a" * 256,) * 4, stop_token_ids=(*range(63), 999)),
        sampled(repetition_penalty=0.01, presence_penalty=-2.0, frequency_penalty=2.0, logprobs=20),
        sampled(logit_bias=tuple((token, 100.0 if token % 2 else -100.0) for token in range(300)), logprobs=0),
    ],
)
def test_the_edges_of_what_is_allowed_pass(body: Generate) -> None:
    assert problem(body, rules()) is None


@pytest.mark.parametrize(
    ("body", "parameter"),
    [
        (Generate("r"), "prompt"),
        (Generate("r", prompt="x", messages=CHAT), "messages"),
        (Generate("r", prompt="x", token_ids=(1,)), "token_ids"),
        (Generate("r", prompt=""), "prompt"),
        (Generate("r", messages=()), "messages"),
        (Generate("r", messages=CHAT * 4), "messages"),
        (Generate("r", messages=(*CHAT, Message("<|im_start|>", "x"))), "messages.1.role"),
        (Generate("r", messages=(Message("", "x"),)), "messages.0.role"),
        (Generate("r", token_ids=()), "token_ids"),
        (Generate("r", token_ids=(1, -1)), "token_ids"),
        (Generate("r", token_ids=(1000,)), "token_ids"),
        (
            Generate(
                "r",
                token_ids=(
                    1,
                    2**63,
                ),
            ),
            "token_ids",
        ),
        (Generate("r", prompt="x", n=0), "n"),
        (Generate("r", prompt="x", n=5), "n"),
        (Generate("r", prompt="x", n=-1), "n"),
        (Generate("r", prompt="x", ttl_ms=0), "ttl_ms"),
        (Generate("r", prompt="x", ttl_first_ms=-5), "ttl_first_ms"),
        (Generate("r", prompt="x", ttl_ms=2**31 + 1), "ttl_ms"),
        (sampled(temperature=-0.1), "temperature"),
        (sampled(temperature=NAN), "temperature"),
        (sampled(temperature=INF), "temperature"),
        (sampled(temperature=100.1), "temperature"),
        (sampled(top_p=0.0), "top_p"),
        (sampled(top_p=1.1), "top_p"),
        (sampled(top_p=NAN), "top_p"),
        (sampled(top_k=-2), "top_k"),
        (sampled(min_p=-0.1), "min_p"),
        (sampled(min_p=1.1), "min_p"),
        (sampled(min_p=NAN), "min_p"),
        (sampled(seed=2**64), "seed"),
        (sampled(seed=-(2**63) - 1), "seed"),
        (sampled(max_tokens=0), "max_tokens"),
        (sampled(max_tokens=-1), "max_tokens"),
        (sampled(min_tokens=-1), "min_tokens"),
        (sampled(max_tokens=3, min_tokens=4), "min_tokens"),
        (sampled(min_tokens=65), "min_tokens"),
        (sampled(stop=("a",) * 5), "stop"),
        (sampled(stop=("",)), "stop"),
        (sampled(stop=("a" * 257,)), "stop"),
        (sampled(stop_token_ids=(1,) * 65), "stop_token_ids"),
        (sampled(stop_token_ids=(-1,)), "stop_token_ids"),
        (sampled(stop_token_ids=(1000,)), "stop_token_ids"),
        (sampled(presence_penalty=2.1), "presence_penalty"),
        (sampled(presence_penalty=NAN), "presence_penalty"),
        (sampled(frequency_penalty=-2.1), "frequency_penalty"),
        (sampled(repetition_penalty=0.0), "repetition_penalty"),
        (sampled(repetition_penalty=NAN), "repetition_penalty"),
        (sampled(repetition_penalty=1e30), "repetition_penalty"),
        (sampled(logit_bias=((1, 100.5),)), "logit_bias"),
        (sampled(logit_bias=((1, NAN),)), "logit_bias"),
        (sampled(logit_bias=((1000, 1.0),)), "logit_bias"),
        (sampled(logit_bias=((-1, 1.0),)), "logit_bias"),
        (sampled(logit_bias=((1, 1.0), (1, 2.0))), "logit_bias"),
        (sampled(logit_bias=tuple((token, 1.0) for token in range(301))), "logit_bias"),
        (sampled(logprobs=-1), "logprobs"),
        (sampled(logprobs=21), "logprobs"),
    ],
)
def test_a_value_out_of_range_is_invalid_and_named(body: Generate, parameter: str) -> None:
    found = problem(body, rules())
    assert found is not None
    assert (found.code, found.parameter) == (Code.INVALID, parameter)
    assert len(found.reason) > 10


def test_a_reserved_feature_is_refused_by_name() -> None:
    found = problem(sampled(reserved_1="root"), rules())
    assert found is not None
    assert (found.code, found.parameter) == (Code.UNSUPPORTED, "grammar")


def test_an_unknown_model_is_answered_with_those_served() -> None:
    found = problem(Generate("r", model="large", prompt="x"), rules())
    assert found is not None
    assert (found.code, found.parameter) == (Code.MODEL_NOT_FOUND, "model")
    assert "small, smaller" in found.reason


def test_messages_without_a_chat_template_are_unsupported() -> None:
    found = problem(Generate("r", messages=CHAT), rules(has_chat_template=False))
    assert found is not None
    assert found.code is Code.UNSUPPORTED


@pytest.mark.parametrize(
    "body",
    [
        Generate("r", prompt="a" * (64 * 64 + 1)),
        Generate("r", messages=(Message("user", "a" * (64 * 64)),)),
        Generate("r", token_ids=(1,) * 64),
    ],
)
def test_what_cannot_fit_is_refused_without_tokenizing_it(body: Generate) -> None:
    found = problem(body, rules())
    assert found is not None
    assert found.code is Code.CONTEXT_LENGTH


@pytest.mark.parametrize("name", ["", "x" * 129, "a b", "ä", "a\n", "\x00", "\x7f"])
def test_an_id_that_cannot_be_quoted_is_refused(name: str) -> None:
    assert id_problem(name) is not None


def test_an_ordinary_id_passes() -> None:
    assert id_problem("chatcmpl-0123_~!") is None
