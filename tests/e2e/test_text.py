"""What a client sees of wild tokens: the deltas join to the whole text, and that is what the tokenizer decodes."""

import asyncio

import pytest
from e2e.harness import Stack
from tokenizers import Tokenizer

from noria.client import AsyncClient
from noria.shared.config.config import ModelSettings
from noria.shared.model.model_folder import resolve_model_folder

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(resolve_model_folder(ModelSettings()) / "tokenizer.json"))


def test_deltas_join_to_the_decoded_ids_for_tokens_from_all_over_the_vocabulary(
    smollm2: Stack, tokenizer: Tokenizer
) -> None:
    """So hot that any token may come: parts of characters, emoji, CJK, runs of spaces, special tokens; cut anywhere."""

    async def one(client: AsyncClient, seed: int) -> tuple[str, str, str]:
        text = ""
        ids: list[int] = []
        options = {"temperature": 100.0, "seed": seed, "max_tokens": 5 + seed % 20, "ignore_eos": True}
        generation = client.generate("Any text at all:", **options)
        async for delta in generation:
            assert delta.characters == len(text)
            assert delta.start == len(ids)
            text += delta.text
            ids += delta.token_ids
        whole = (await generation.result()).choices[0]
        assert list(whole.token_ids) == ids
        return text, whole.text, tokenizer.decode(ids)

    async def run() -> None:
        async with AsyncClient(smollm2.endpoint) as client:
            results = await asyncio.gather(*(one(client, seed) for seed in range(40)))
        for deltas, whole, decoded in results:
            assert deltas == whole == decoded
        assert any("\ufffd" in whole for _, whole, _ in results), "no output was cut inside a character"

    asyncio.run(run())


@pytest.mark.parametrize(
    "text", ["👩‍👩‍👧‍👦 family", "naïve e\u0301", "日本語のテキスト", "a    b\n\n\n   c", "🇩🇪🏳️‍🌈 flags"]
)
def test_echoed_prompts_come_back_as_they_were(smollm2: Stack, text: str) -> None:
    import openai

    client = openai.OpenAI(base_url=f"{smollm2.url}/v1", api_key="none", max_retries=0)
    answer = client.completions.create(model="smollm2", prompt=text, max_tokens=3, temperature=0, echo=True)
    assert answer.choices[0].text.startswith(text)
    assert len(answer.choices[0].text) > len(text)
