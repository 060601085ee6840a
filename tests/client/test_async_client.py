"""The asynchronous client against a fake front door, over ipc."""

import asyncio
from typing import Any

import pytest
from fakes.front_door import FrontDoor, Mail, refuse, silent, words
from fakes.story import accepted, came, open_requests, run, until

import noria.client as client_library
from noria.client import (
    AsyncClient,
    Code,
    Delta,
    Malformed,
    Refused,
    Superseded,
)
from noria.proto import frontdoor
from noria.proto.base import End
from noria.proto.frontdoor import (
    Acknowledge,
    Cancel,
    Generate,
    Updates,
)


def test_a_generation_yields_deltas_and_the_whole(door: FrontDoor) -> None:
    door.script = words("Hel", "lo", " 🌍", end=End.LENGTH)

    async def story(client: AsyncClient) -> None:
        generation = client.generate("hi", max_tokens=3)
        text = ""
        deltas: list[Delta] = []
        async for delta in generation:
            assert delta.characters == len(text)
            text += delta.text
            deltas.append(delta)
        assert text == "Hello 🌍"
        assert [delta.finish is not None for delta in deltas] == [False] * (len(deltas) - 1) + [True]
        whole = await generation.result()
        assert whole.text == text
        assert whole.choices[0].token_ids == (100, 101, 102)
        assert whole.finish_reason == "length"
        assert (whole.usage.prompt_tokens, whole.usage.output_tokens, whole.usage.total_tokens) == (7, 3, 10)
        assert whole.choices[0].timings.total_ms == 3.0
        accepted = await generation.accepted()
        assert (accepted.model, accepted.seed, accepted.prompt_tokens) == ("fake", 42, 7)
        await came(door, Acknowledge)
        assert door.of(Acknowledge)[0].ids == (generation.id,)
        assert not door.of(Cancel)
        assert open_requests(client) == 0

    run(door, story)


def test_every_option_reaches_the_wire(door: FrontDoor) -> None:
    door.script = words("x")

    async def story(client: AsyncClient) -> None:
        await client.complete(
            messages=[{"role": "user", "content": "hé"}, frontdoor.Message("assistant", "ho")],
            request_id="mine",
            traceparent="00-1-2-01",
            model="m",
            n=2,
            ttl_ms=5,
            ttl_first_ms=4,
            credential="key",
            traffic_class="batch",
            temperature=0.5,
            top_p=0.9,
            top_k=3,
            min_p=0.1,
            seed=9,
            max_tokens=8,
            min_tokens=2,
            stop="end",
            stop_token_ids=[4, 5],
            ignore_eos=True,
            include_stop=True,
            skip_special_tokens=False,
        )

    run(door, story)
    sent = door.of(Generate)[0]
    assert sent.messages == (frontdoor.Message("user", "hé"), frontdoor.Message("assistant", "ho"))
    assert (sent.id, sent.model, sent.n, sent.ttl_ms, sent.ttl_first_ms) == ("mine", "m", 2, 5, 4)
    assert (sent.credential, sent.traffic_class) == ("key", "batch")
    sampling = sent.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 3, 0.1)
    assert (sampling.seed, sampling.max_tokens, sampling.min_tokens) == (9, 8, 2)
    assert (sampling.stop, sampling.stop_token_ids) == (("end",), (4, 5))
    assert (sampling.ignore_eos, sampling.include_stop, sampling.skip_special_tokens) == (True, True, False)
    mail = door.wait_for(Generate)
    assert mail.header.traceparent == "00-1-2-01"
    assert mail.header.sender.startswith("client-")


@pytest.mark.parametrize(
    ("options", "parameter"),
    [
        ({"max_tokens": "many"}, "max_tokens"),
        ({"temperature": []}, "temperature"),
        ({"n": 1.5}, "n"),
        ({"seed": 2**70}, "seed"),
        ({"model": None}, "model"),
        ({"stop": [1]}, "stop"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_before_it_is_sent(
    door: FrontDoor, options: dict[str, Any], parameter: str
) -> None:
    async def story(client: AsyncClient) -> None:
        with pytest.raises(Refused) as refused:
            client.generate("hi", **options)
        assert refused.value.code is Code.INVALID
        assert refused.value.parameter == parameter
        assert parameter in str(refused.value)
        with pytest.raises(TypeError, match="exactly one"):
            client.generate("hi", token_ids=[1])
        with pytest.raises(TypeError, match="temprature"):
            client.generate("hi", temprature=1)  # type: ignore[call-arg]

    run(door, story)
    assert not door.of(Generate)


def test_a_request_larger_than_the_server_takes_is_refused_here(door: FrontDoor) -> None:
    async def story(client: AsyncClient) -> None:
        with pytest.raises(Refused, match="at most"):
            client.generate("x" * 9_000_000)

    run(door, story)


def test_a_refusal_is_raised_with_all_it_says(door: FrontDoor) -> None:
    door.script = refuse(Code.OVERLOADED, "full", "queue", 1500)

    async def story(client: AsyncClient) -> None:
        with pytest.raises(Refused) as refused:
            await client.complete("hi")
        error = refused.value
        assert (error.code, error.reason, error.parameter, error.retry_after_ms) == (
            Code.OVERLOADED,
            "full",
            "queue",
            1500,
        )
        assert open_requests(client) == 0

    run(door, story)


def test_a_slow_reader_gets_merged_deltas_and_does_not_stop_the_others(door: FrontDoor) -> None:
    async def story(client: AsyncClient) -> None:
        slow = client.generate("slow", request_id="slow")
        mail = await came(door, Generate)
        door.accept(mail)
        for number in range(2000):
            door.say(mail.client, "slow", "x", start=number, characters=number)
        door.finish(mail.client, "slow", 2000)
        door.script = words("quick")
        assert (await client.complete("other")).text == "quick"
        await until(lambda: "slow" in {name for each in door.of(Acknowledge) for name in each.ids})
        deltas = [delta async for delta in slow]
        assert len(deltas) == 1
        assert deltas[0].text == "x" * 2000
        assert deltas[0].finish is not None

    run(door, story)


def test_many_streams_share_one_socket(door: FrontDoor) -> None:
    def script(door: FrontDoor, mail: Mail) -> None:
        if isinstance(mail.body, Generate):
            assert mail.body.prompt is not None
            words(*mail.body.prompt)(door, mail)

    door.script = script

    async def story(client: AsyncClient) -> None:
        prompts = [f"prompt number {number}" for number in range(200)]
        wholes = await asyncio.gather(*(client.complete(prompt, n=2) for prompt in prompts))
        assert [whole.choices[1].text for whole in wholes] == prompts
        await until(lambda: len({name for each in door.of(Acknowledge) for name in each.ids}) == 200)
        assert open_requests(client) == 0

    run(door, story)
    assert len({mail.client for mail in door.received}) == 1
    sequences = [mail.header.sequence for mail in door.received]
    assert sequences == list(range(1, len(sequences) + 1))


def test_the_same_request_made_again_takes_over_its_answer(door: FrontDoor) -> None:
    async def story(client: AsyncClient) -> None:
        older = client.generate("hi", request_id="r")
        newer = client.generate("hi", request_id="r")
        with pytest.raises(Refused, match="id"):
            client.generate("something else", request_id="r")
        with pytest.raises(Superseded):
            await older.result()
        await older.aclose()
        mail = await came(door, Generate, 2)
        words("ours")(door, mail)
        assert (await newer.result()).text == "ours"

    run(door, story)
    assert not door.of(Cancel)


def test_a_server_that_cannot_read_a_request_fails_it(door: FrontDoor) -> None:
    def script(door: FrontDoor, mail: Mail) -> None:
        if isinstance(mail.body, Generate):
            door.send(mail.client, frontdoor.Malformed("Generate", "too new"))

    door.script = script

    async def story(client: AsyncClient) -> None:
        with pytest.raises(Malformed, match="too new"):
            await client.complete("hi")

    run(door, story)


def test_an_unknown_choice_in_an_update_is_ignored(door: FrontDoor) -> None:
    async def story(client: AsyncClient) -> None:
        generation, name = await accepted(client, door)
        door.say(name, "r", "?", index=5)
        door.send(name, Updates())
        door.say(name, "r", "ok")
        door.finish(name, "r", 1)
        assert (await generation.result()).text == "ok"

    run(door, story)


def test_a_deadline_is_an_end_of_its_own(door: FrontDoor) -> None:
    door.script = words("a", end=End.DEADLINE, detail="too late")

    async def story(client: AsyncClient) -> None:
        whole = await client.complete("hi")
        assert (whole.finish_reason, whole.choices[0].finish.detail) == ("deadline", "too late")

    run(door, story)
    assert door.script is not silent


def test_the_earlier_name_of_the_timeouts_is_answered() -> None:
    assert client_library.Patience is client_library.ClientTimeouts
    assert {"Patience", "ClientTimeouts"} <= set(client_library.__all__)
