"""The client without an event loop, against a fake front door."""

import asyncio
import contextlib
import subprocess
import sys
import threading

import pytest
from fakes.front_door import FrontDoor, Mail, refuse, words

from noria.client import Client, Closed, Code, Refused
from noria.client.synchronous import _EventLoopThread
from noria.proto.base import End
from noria.proto.frontdoor import Acknowledge, Cancel, Generate


def endless(door: FrontDoor, mail: Mail) -> None:
    if isinstance(mail.body, Generate):
        door.accept(mail)
        door.say(mail.client, mail.body.id, "a", "b")
    if isinstance(mail.body, Cancel):
        door.finish(mail.client, mail.body.id, 2, End.CANCELLED)


def test_a_client_without_an_event_loop_streams_and_completes(door: FrontDoor) -> None:
    door.script = words("Hel", "lo", end=End.LENGTH)
    with Client(door.endpoint) as client:
        assert client.describe().models == ("fake",)
        generation = client.generate("hi", n=2)
        texts = ["", ""]
        for delta in generation:
            texts[delta.index] += delta.text
        assert texts == ["Hello", "Hello"]
        assert generation.result().usage.output_tokens == 4
        assert generation.accepted().model == "fake"
        assert client.complete(token_ids=[1, 2]).text == "Hello"
    assert not door.of(Cancel)
    assert door.of(Acknowledge)


def test_leaving_the_loop_cancels_the_request(door: FrontDoor) -> None:
    door.script = endless
    with Client(door.endpoint) as client:
        for _ in client.generate("hi", request_id="r"):
            break
        door.wait_for(Cancel)
        door.wait_for(Acknowledge)
        with client.generate("hi", request_id="s"):
            pass
        door.wait_for(Cancel, 2)
        held = client.generate("hi", request_id="u")
        for _ in held:
            break
        door.wait_for(Cancel, 3)  # although the generation itself is still there
        assert held.id == "u"
        generation = client.generate("hi", request_id="t")
        generation.cancel()
        assert generation.result().finish_reason == "cancelled"


def test_a_refusal_is_raised_in_the_calling_thread(door: FrontDoor) -> None:
    door.script = refuse(Code.QUOTA, "enough")
    with Client(door.endpoint) as client:
        with pytest.raises(Refused, match="enough"):
            client.complete("hi")
        with pytest.raises(Refused, match="Expected"):
            client.generate("hi", max_tokens="x")  # type: ignore[arg-type]


def test_several_threads_share_one_client(door: FrontDoor) -> None:
    def script(door: FrontDoor, mail: Mail) -> None:
        if isinstance(mail.body, Generate):
            words(mail.body.prompt or "")(door, mail)

    door.script = script
    answers: dict[str, str] = {}
    with Client(door.endpoint) as client:
        threads = [
            threading.Thread(target=lambda name=str(number): answers.__setitem__(name, client.complete(name).text))
            for number in range(16)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert answers == {str(number): str(number) for number in range(16)}


def test_closing_ends_whoever_waits_in_another_thread(door: FrontDoor) -> None:
    client = Client(door.endpoint)
    caught: list[BaseException] = []

    def wait() -> None:
        try:
            client.complete("hi")
        except Closed as error:
            caught.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    door.wait_for(Generate)
    client.close()
    client.close()
    thread.join(60)
    assert len(caught) == 1
    door.wait_for(Cancel)
    with pytest.raises(Closed):
        client.complete("again")


def test_a_call_made_while_another_thread_closes_the_client_ends_too() -> None:
    loop = _EventLoopThread()
    closing, held, refused = threading.Event(), threading.Event(), threading.Event()

    async def last() -> None:
        asyncio.get_running_loop().call_soon(held.wait, 10)  # keeps the loop from ending
        closing.set()

    def call() -> None:
        with contextlib.suppress(Closed):
            loop.run(asyncio.sleep(0))
        refused.set()

    stopper = threading.Thread(target=loop.stop, args=(last(),))
    stopper.start()
    assert closing.wait(60)
    threading.Thread(target=call, daemon=True).start()
    refused.wait(0.1)
    held.set()
    stopper.join(60)
    assert refused.wait(60)


EXITS = """
import sys
from noria.client import Client
client = Client(sys.argv[1])
generation = client.generate("hi")
for delta in generation:
    print(delta.text)
    break
keep = client.generate("more")
assert not {"starlette", "structlog", "numpy", "click", "opentelemetry"} & set(sys.modules), "the base install"
"""


def test_a_program_may_end_without_closing_and_without_a_word(door: FrontDoor) -> None:
    door.script = endless
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", EXITS, door.endpoint],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stderr == ""
    assert done.returncode == 0
    assert done.stdout == "ab\n"
    door.wait_for(Cancel, 2)
