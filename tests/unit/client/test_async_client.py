"""The asynchronous client against a fake front door, over ipc."""

import asyncio
import gc
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.front_door import FrontDoor, Mail, refuse, silent, words

from noria.client import (
    AsyncClient,
    Closed,
    Code,
    Delta,
    Interrupted,
    Malformed,
    Patience,
    Refused,
    Superseded,
    Unreachable,
)
from noria.proto import frontdoor
from noria.proto.base import End
from noria.proto.frontdoor import (
    Accepted,
    Acknowledge,
    Attach,
    Cancel,
    Generate,
    Have,
    Identify,
    Ping,
    Preview,
    Rejected,
    Updates,
)

QUICK = Patience(
    accept_s=60, answer_s=60, ping_s=0.1, silence_s=1.0, reconnect_s=60, resend_s=0.1, resend_max_s=0.2, leave_s=60
)


@pytest.fixture
def door(tmp_path: Path) -> Iterator[FrontDoor]:
    with FrontDoor(f"ipc://{tmp_path}/door.sock") as door:
        yield door


def run(door: FrontDoor, story: Callable[[AsyncClient], Coroutine[Any, Any, None]], patience: Patience = QUICK) -> None:
    async def main() -> None:
        async with asyncio.timeout(120):
            async with AsyncClient(door.endpoint, patience=patience) as client:
                await story(client)

    asyncio.run(main())


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


async def came(door: FrontDoor, kind: type[Any], count: int = 1) -> Mail:
    return await asyncio.to_thread(door.wait_for, kind, count)


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
        assert client.open_requests == 0

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
        assert client.open_requests == 0

    run(door, story)


def test_known_news_is_dropped_and_a_gap_is_asked_for(door: FrontDoor) -> None:
    async def story(client: AsyncClient) -> None:
        generation = client.generate("hi", request_id="r")
        mail = await came(door, Generate)
        door.accept(mail)
        door.say(mail.client, "r", "ab", "cd")
        door.say(mail.client, "r", "ab", "cd")
        door.say(mail.client, "r", "cd", "ef", start=1, characters=2)
        door.say(mail.client, "r", "later", start=5, characters=20)
        attach = await came(door, Attach)
        assert isinstance(attach.body, Attach)
        assert attach.body.have == (Have(0, 0, 3, 6),)
        door.finish(mail.client, "r", 4)  # its last token is missing still
        door.say(mail.client, "r", "gh", start=3, characters=6)
        door.finish(mail.client, "r", 4)
        whole = await generation.result()
        assert whole.text == "abcdefgh"
        assert whole.choices[0].token_ids == (100, 101, 102, 103)

    run(door, story)


def test_a_higher_attempt_truncates_what_was_there(door: FrontDoor) -> None:
    async def story(client: AsyncClient) -> None:
        generation = client.generate("hi", request_id="r")
        mail = await came(door, Generate)
        door.accept(mail)
        door.say(mail.client, "r", "ab", "cd", "ef")
        first = await generation.next()
        assert first is not None
        door.say(mail.client, "r", "XY", attempt=1, start=1, characters=2)
        door.say(mail.client, "r", "old", attempt=0, start=3, characters=6)
        second = await generation.next()
        assert second is not None
        assert (second.text, second.characters, second.start, second.attempt) == ("XY", 2, 1, 1)
        door.finish(mail.client, "r", 2)
        assert (await generation.result()).text == "abXY"

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


async def _break(client: AsyncClient) -> None:
    async for _ in client.generate("hi", request_id="r"):
        break


async def _raise(client: AsyncClient) -> None:
    async def fail() -> None:
        async for _ in client.generate("hi", request_id="r"):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()


async def _close(client: AsyncClient) -> None:
    generation = client.generate("hi", request_id="r")
    assert await generation.next() is not None
    await generation.aclose()
    await generation.aclose()
    assert (await generation.result()).finish_reason == "cancelled"


async def _leave_block(client: AsyncClient) -> None:
    async with client.generate("hi", request_id="r") as generation:
        await generation.accepted()


async def _cancel_task(client: AsyncClient) -> None:
    task = asyncio.create_task(client.complete("hi", request_id="r"))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def _drop(client: AsyncClient) -> None:
    generation = client.generate("hi", request_id="r")
    await generation.accepted()
    del generation
    gc.collect()


@pytest.mark.parametrize("leave", [_break, _raise, _close, _leave_block, _cancel_task, _drop])
def test_leaving_a_generation_cancels_it(
    door: FrontDoor, leave: Callable[[AsyncClient], Coroutine[Any, Any, None]]
) -> None:
    def endless(door: FrontDoor, mail: Mail) -> None:
        if isinstance(mail.body, Generate):
            door.accept(mail)
            door.say(mail.client, mail.body.id, "a", "b")
        if isinstance(mail.body, Cancel):
            door.say(mail.client, "r", "c", start=2, characters=2)
            door.finish(mail.client, "r", 3, End.CANCELLED)

    door.script = endless

    async def story(client: AsyncClient) -> None:
        await leave(client)
        await came(door, Cancel)
        await came(door, Acknowledge)
        await until(lambda: client.open_requests == 0)

    run(door, story)
    assert door.of(Cancel) == [Cancel("r")]


def test_leaving_after_the_end_cancels_nothing(door: FrontDoor) -> None:
    door.script = words("a", "b")

    async def story(client: AsyncClient) -> None:
        async for delta in client.generate("hi"):
            if delta.finish is not None:
                break
        await client.describe()

    run(door, story)
    assert not door.of(Cancel)


def test_what_was_cancelled_before_it_was_accepted_says_so(door: FrontDoor) -> None:
    async def story(client: AsyncClient) -> None:
        generation = client.generate("hi", request_id="r")
        await generation.aclose()
        with pytest.raises(Interrupted, match="before"):
            await generation.accepted()

    run(door, story)


def test_cancel_lets_the_reader_see_the_end(door: FrontDoor) -> None:
    async def story(client: AsyncClient) -> None:
        generation = client.generate("hi", request_id="r")
        mail = await came(door, Generate)
        door.accept(mail)
        door.say(mail.client, "r", "one")
        await generation.next()
        await generation.cancel()
        await came(door, Cancel)
        door.say(mail.client, "r", " two", start=1, characters=3)
        door.finish(mail.client, "r", 2, End.CANCELLED)
        whole = await generation.result()
        assert (whole.text, whole.finish_reason) == ("one two", "cancelled")

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
        assert client.open_requests == 0

    run(door, story)
    assert len({mail.client for mail in door.received}) == 1
    sequences = [mail.header.sequence for mail in door.received]
    assert sequences == list(range(1, len(sequences) + 1))


def test_requests_made_before_the_server_is_there_are_sent_when_it_comes(tmp_path: Path) -> None:
    door = FrontDoor(f"ipc://{tmp_path}/door.sock", words("late"))

    async def story(client: AsyncClient) -> None:
        generation = client.generate("hi")
        await asyncio.sleep(0.05)
        await asyncio.to_thread(door.start)
        assert (await generation.result()).text == "late"

    run(door, story)
    door.stop()


def test_open_streams_attach_again_when_the_server_is_another(door: FrontDoor) -> None:
    async def story(client: AsyncClient) -> None:
        generation = client.generate("hi", request_id="r")
        mail = await came(door, Generate)
        door.accept(mail)
        door.say(mail.client, "r", "ab", "cd")
        assert await generation.next() is not None

        def remembers(door: FrontDoor, mail: Mail) -> None:
            if isinstance(mail.body, Attach):
                door.send(mail.client, Accepted("r", 1, 7, "fake", 42))
                door.say(mail.client, "r", "cd", "ef", start=1, characters=2)
                door.finish(mail.client, "r", 3)

        await asyncio.to_thread(door.restart, remembers)
        assert (await generation.result()).text == "abcdef"
        assert door.of(Attach)[0].have == (Have(0, 0, 2, 4),)

    run(door, story)


def test_a_request_that_the_new_server_does_not_know_is_made_again_when_nothing_was_received(door: FrontDoor) -> None:
    async def story(client: AsyncClient) -> None:
        generation = client.generate("hi", request_id="r")
        mail = await came(door, Generate)
        door.accept(mail)
        await generation.accepted()
        refusals = [Code.NOT_READY]

        def forgetful(door: FrontDoor, mail: Mail) -> None:
            if isinstance(mail.body, Attach):
                door.send(mail.client, Rejected("r", Code.NOT_FOUND, "unknown"))
            if isinstance(mail.body, Generate) and refusals:
                door.send(mail.client, Rejected("r", refusals.pop(), "starting", retry_after_ms=50))
            elif isinstance(mail.body, Generate):
                words("again")(door, mail)

        await asyncio.to_thread(door.restart, forgetful)
        assert (await generation.result()).text == "again"
        assert {each.id for each in door.of(Generate)} == {"r"}

    run(door, story)


def test_a_server_that_says_when_it_will_be_ready_is_waited_for_unless_that_is_too_long(door: FrontDoor) -> None:
    async def story(client: AsyncClient) -> None:
        waits = [100, 100]

        def restarting(door: FrontDoor, mail: Mail) -> None:
            if isinstance(mail.body, Generate) and waits:
                door.send(mail.client, Rejected(mail.body.id, Code.NOT_READY, "wait", retry_after_ms=waits.pop()))
            elif isinstance(mail.body, Generate):
                words("at last")(door, mail)

        door.script = restarting
        assert (await client.complete("hi")).text == "at last"
        waits.append(60_000)
        with pytest.raises(Refused):
            await client.complete("hi")

    run(door, story)


def test_an_answer_that_the_new_server_does_not_know_is_interrupted(door: FrontDoor) -> None:
    async def story(client: AsyncClient) -> None:
        generation = client.generate("hi", request_id="r")
        mail = await came(door, Generate)
        door.accept(mail)
        door.say(mail.client, "r", "ab")
        assert await generation.next() is not None

        def forgetful(door: FrontDoor, mail: Mail) -> None:
            if isinstance(mail.body, Attach):
                door.send(mail.client, Rejected("r", Code.NOT_FOUND, "unknown"))

        await asyncio.to_thread(door.restart, forgetful)
        with pytest.raises(Interrupted):
            await generation.result()

    run(door, story)


def test_a_lost_message_is_asked_for_after_a_silence(door: FrontDoor) -> None:
    async def story(client: AsyncClient) -> None:
        generation = client.generate("hi", request_id="r")
        mail = await came(door, Generate)
        door.accept(mail)
        await came(door, Attach)
        door.say(mail.client, "r", "found")
        door.finish(mail.client, "r", 1)
        assert (await generation.result()).text == "found"
        assert door.of(Ping)

    run(door, story)


def test_an_unanswered_request_is_repeated_and_then_unreachable(door: FrontDoor) -> None:
    door.lively = False

    async def story(client: AsyncClient) -> None:
        with pytest.raises(Unreachable, match="no answer"):
            await client.complete("hi", request_id="r")
        with pytest.raises(Unreachable, match="nothing answered"):
            await client.describe(timeout_s=0.05)

    run(door, story, Patience(accept_s=2, ping_s=0.1, resend_s=0.1, resend_max_s=0.1))
    sent = door.of(Generate)
    assert len(sent) > 1
    assert len(set(map(repr, sent))) == 1


def test_an_answer_that_stops_coming_is_unreachable_after_what_came_has_been_read(door: FrontDoor) -> None:
    async def story(client: AsyncClient) -> None:
        generation = client.generate("hi", request_id="r")
        mail = await came(door, Generate)
        door.accept(mail)
        door.say(mail.client, "r", "ab")
        await generation.accepted()
        await client.describe()
        await asyncio.to_thread(door.stop)
        delta = await generation.next()
        assert delta is not None
        assert delta.text == "ab"
        with pytest.raises(Unreachable, match="stopped"):
            await generation.result()

    run(door, story, Patience(ping_s=0.1, silence_s=0.1, reconnect_s=2, resend_s=0.1))


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


def test_news_of_a_stream_that_nobody_asked_for_is_cancelled(door: FrontDoor) -> None:
    async def story(client: AsyncClient) -> None:
        await client.describe()
        mail = await came(door, frontdoor.Describe)
        door.say(mail.client, "stray", "text")
        await came(door, Cancel)
        door.finish(mail.client, "stray", 1, End.CANCELLED)
        await came(door, Acknowledge)

    run(door, story)
    assert door.of(Cancel) == [Cancel("stray", left=True)]
    assert door.of(Acknowledge) == [Acknowledge(("stray",))]


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
        generation = client.generate("hi", request_id="r")
        mail = await came(door, Generate)
        door.accept(mail)
        door.say(mail.client, "r", "?", index=5)
        door.send(mail.client, Updates())
        door.say(mail.client, "r", "ok")
        door.finish(mail.client, "r", 1)
        assert (await generation.result()).text == "ok"

    run(door, story)


def test_closing_the_client_cancels_what_is_open_and_ends_its_readers(door: FrontDoor) -> None:
    async def story(client: AsyncClient) -> None:
        generation = client.generate("hi", request_id="r")
        door.accept(await came(door, Generate))
        await generation.accepted()
        reader = asyncio.create_task(generation.result())
        await asyncio.sleep(0)
        await client.aclose()
        await client.aclose()
        with pytest.raises(Closed):
            await reader
        with pytest.raises(Closed):
            client.generate("again")
        await came(door, Cancel)

    run(door, story)


def test_describe_says_what_is_served(door: FrontDoor) -> None:
    async def story(client: AsyncClient) -> None:
        first, second = await asyncio.gather(client.describe(), client.describe())
        assert first.models == second.models == ("fake",)

    run(door, story)


def test_a_deadline_is_an_end_of_its_own(door: FrontDoor) -> None:
    door.script = words("a", end=End.DEADLINE, detail="too late")

    async def story(client: AsyncClient) -> None:
        whole = await client.complete("hi")
        assert (whole.finish_reason, whole.choices[0].finish.detail) == ("deadline", "too late")

    run(door, story)
    assert door.script is not silent


def test_a_preview_is_a_question_of_its_own_and_carries_the_clients_key_and_class(door: FrontDoor) -> None:
    async def story(client: AsyncClient) -> None:
        told, known = await asyncio.gather(
            client.preview("hi", max_tokens=3, request_id="mine"), client.identify("operator")
        )
        assert (told.admitted, told.finish_ms) == (True, 3.0)
        assert known.classes == ("standard", "admin")
        asked = door.of(Preview)[0].request
        assert told.id == asked.id != "mine"
        assert (asked.prompt, asked.sampling.max_tokens) == ("hi", 3)
        with pytest.raises(Refused) as caught:
            await client.identify("nobody")
        assert caught.value.code is Code.UNAUTHORIZED
        assert not door.of(Generate) and client.open_requests == 0

    run(door, story)


def test_a_question_lost_with_its_server_is_asked_again(door: FrontDoor) -> None:
    door.lively = False

    async def story(client: AsyncClient) -> None:
        waiting = asyncio.ensure_future(client.preview("hi"))
        await came(door, Preview)
        door.lively = True
        await asyncio.to_thread(door.restart)
        assert (await waiting).admitted

    run(door, story)


def test_a_question_that_nobody_answers_is_given_up_and_a_closed_client_says_so(door: FrontDoor) -> None:
    door.lively = False

    async def story(client: AsyncClient) -> None:
        with pytest.raises(Unreachable, match=r"0\.05 s"):
            await client.preview("hi", timeout_s=0.05)
        waiting = asyncio.ensure_future(client.identify())
        await came(door, Identify)
        await client.aclose()
        with pytest.raises(Closed):
            await waiting

    run(door, story)


def test_an_idempotent_request_that_is_accepted_after_its_reader_left_is_not_cancelled(door: FrontDoor) -> None:
    async def story(client: AsyncClient) -> None:
        generation = client.generate("hi", request_id="once", keep=True)
        mail = await came(door, Generate)
        await generation.aclose()
        await came(door, Cancel)
        door.send(mail.client, frontdoor.Accepted("once", 1, 1, "model", 0))
        assert (await came(door, Cancel, 2)).body == Cancel("once", left=True)

    run(door, story)


def test_who_leaves_an_idempotent_request_says_so_and_forgets_it_at_once(door: FrontDoor) -> None:
    async def story(client: AsyncClient) -> None:
        generation = client.generate("hi", request_id="once", keep=True, credential="key")
        await came(door, Generate)
        await generation.aclose()
        assert (await came(door, Cancel)).body == Cancel("once", credential="key", left=True)
        assert client.open_requests == 0
        assert generation.finished

    run(door, story)
