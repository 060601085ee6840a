"""The official client, curl's view and our own client against the real small model."""

import asyncio
import json

import httpx
import openai
import pytest
from e2e.harness import Stack

pytestmark = pytest.mark.model

MESSAGES = [{"role": "user", "content": "Name three colours and say why you like them."}]


@pytest.fixture
def client(smollm2: Stack) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{smollm2.url}/v1", api_key="none", max_retries=0)


def test_the_official_client_streams_what_it_returns_whole(client: openai.OpenAI) -> None:
    options = {"model": "smollm2", "messages": MESSAGES, "temperature": 0, "max_tokens": 24}
    whole = client.chat.completions.create(**options)
    chunks = list(client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert text.strip()
    assert chunks[0].choices[0].delta.role == "assistant"
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    assert (
        [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1]
        == whole.choices[0].finish_reason
        == "length"
    )
    assert chunks[-1].choices == []
    usage = chunks[-1].usage
    assert usage is not None and whole.usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (whole.usage.prompt_tokens, whole.usage.completion_tokens)
    assert whole.usage.completion_tokens == 24
    # The second time the prompt's full pages are in the cache.
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == (usage.prompt_tokens - 1) // 16 * 16


def test_a_raw_stream_is_server_sent_events_that_end_in_done(smollm2: Stack) -> None:
    body = {"model": "smollm2", "prompt": "The capital of France is", "max_tokens": 4, "temperature": 0, "stream": True}
    with httpx.stream("POST", f"{smollm2.url}/v1/completions", json=body, timeout=60) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        data = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    assert "".join(json.loads(each)["choices"][0]["text"] for each in data[:-1]).startswith(" Paris")


def test_a_stop_string_across_tokens_ends_the_text_before_it(client: openai.OpenAI) -> None:
    free = (
        client.completions.create(model="smollm2", prompt="1, 2, 3, 4,", max_tokens=24, temperature=0).choices[0].text
    )
    stop = free[7:12]
    cut = client.completions.create(model="smollm2", prompt="1, 2, 3, 4,", max_tokens=24, temperature=0, stop=[stop])
    assert cut.choices[0].finish_reason == "stop"
    assert cut.choices[0].text == free[: free.index(stop)]


def test_several_choices_of_one_seed_differ_and_repeat(client: openai.OpenAI) -> None:
    def texts() -> list[str]:
        answer = client.completions.create(model="smollm2", prompt="Once", max_tokens=12, n=3, seed=7, temperature=1.0)
        return [choice.text for choice in sorted(answer.choices, key=lambda each: each.index)]

    first = texts()
    assert len(set(first)) == 3
    assert texts() == first


def test_the_models_page_names_what_is_served(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["smollm2"]
    with pytest.raises(openai.NotFoundError, match="smollm2"):
        client.chat.completions.create(model="gpt-4", messages=MESSAGES)


def test_requests_in_flight_together_give_the_tokens_of_each_alone(smollm2: Stack) -> None:
    prompts = [
        f"{word} is a word that" for word in ("Rain", "Stone", "River", "Light", "Bread", "Wheel", "Salt", "Snow")
    ]

    async def complete(client: httpx.AsyncClient, prompt: str) -> str:
        body = {"model": "smollm2", "prompt": prompt, "max_tokens": 16, "temperature": 0}
        answer = await client.post(f"{smollm2.url}/v1/completions", json=body)
        text = answer.json()["choices"][0]["text"]
        assert isinstance(text, str)
        return text

    async def run() -> tuple[list[str], list[str]]:
        async with httpx.AsyncClient(timeout=120) as client:
            together = list(await asyncio.gather(*(complete(client, prompt) for prompt in prompts)))
            return together, [await complete(client, prompt) for prompt in prompts]

    together, alone = asyncio.run(run())
    assert together == alone


def test_everything_is_given_back_afterwards(smollm2: Stack) -> None:
    smollm2.wait_idle()
