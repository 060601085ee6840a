"""Penalties, bias and log-probabilities of the real small model through the official client."""

import math
from collections.abc import Iterator

import openai
import pytest
from e2e.harness import Stack

pytestmark = pytest.mark.model

PROMPT = "The capital of France is"
MESSAGES = [{"role": "user", "content": "Say a word with an accent, such as café."}]


@pytest.fixture
def client(smollm2: Stack) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{smollm2.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_a_chats_log_probabilities_are_of_its_text_whole_and_streamed(client: openai.OpenAI) -> None:
    options = {"model": "smollm2", "messages": MESSAGES, "max_tokens": 16, "temperature": 0}
    options |= {"logprobs": True, "top_logprobs": 3}
    whole = client.chat.completions.create(**options)
    assert whole.choices[0].logprobs is not None and whole.usage is not None
    content = whole.choices[0].logprobs.content
    assert content is not None and len(content) == whole.usage.completion_tokens == 16
    assert bytes(byte for each in content for byte in each.bytes).decode() == whole.choices[0].message.content
    for each in content:
        assert len(each.top_logprobs) == 3
        assert each.top_logprobs[0].logprob == each.logprob  # greedy takes the likeliest
        assert sum(math.exp(top.logprob) for top in each.top_logprobs) < 1 + 1e-6
    chunks = [chunk.choices[0] for chunk in client.chat.completions.create(**options, stream=True)]
    streamed = [each for chunk in chunks if chunk.logprobs for each in chunk.logprobs.content or ()]
    assert streamed == content


def test_a_completions_log_probabilities_have_the_places_of_their_text(client: openai.OpenAI) -> None:
    options = {"model": "smollm2", "prompt": PROMPT, "max_tokens": 8, "temperature": 0}
    answer = client.completions.create(**options, logprobs=2).choices[0]
    told = answer.logprobs
    assert told is not None and told.tokens and told.text_offset and told.token_logprobs and told.top_logprobs
    assert "".join(told.tokens) == answer.text
    for token, offset, logprob, top in zip(
        told.tokens, told.text_offset, told.token_logprobs, told.top_logprobs, strict=True
    ):
        assert answer.text[offset:].startswith(token)
        assert top[token] == logprob and len(top) == 2
    assert client.completions.create(**options).choices[0].logprobs is None


def test_a_bias_forces_a_token_and_forbids_another_and_leaves_log_probabilities_alone(client: openai.OpenAI) -> None:
    options = {"model": "smollm2", "prompt": PROMPT, "max_tokens": 1, "temperature": 0, "logprobs": 1}
    free = client.completions.create(**options).choices[0]
    assert free.text == " Paris"
    forced = client.completions.create(**options, logit_bias={"42": 100}).choices[0]
    assert forced.text != free.text
    assert forced.logprobs is not None and free.logprobs is not None
    assert forced.logprobs.token_logprobs and forced.logprobs.token_logprobs[0] < -3
    assert forced.logprobs.top_logprobs and free.logprobs.top_logprobs
    assert forced.logprobs.top_logprobs[0][" Paris"] == free.logprobs.top_logprobs[0][" Paris"]


def test_penalties_break_a_repetition(client: openai.OpenAI) -> None:
    options = {"model": "smollm2", "prompt": "apple, " * 7 + "apple,", "max_tokens": 24, "temperature": 0}
    plain = client.completions.create(**options).choices[0].text
    penalised = client.completions.create(**options, frequency_penalty=2.0, presence_penalty=1.0).choices[0].text
    assert plain.count(" apple") > 10 > 4 > penalised.count(" apple")
    strict = client.completions.create(**options, extra_body={"repetition_penalty": 5.0}).choices[0].text
    assert " apple" not in strict
