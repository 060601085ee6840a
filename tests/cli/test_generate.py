"""`noria generate` against a fake front door: what it asks, what it prints, how it ends."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from fakes.front_door import FrontDoor, Script, refuse, words

from noria.cli.app import run
from noria.proto.base import End
from noria.proto.frontdoor import Cancel, Code, Generate, Message

Captured = pytest.CaptureFixture[str]
Door = Callable[[Script], FrontDoor]


@pytest.fixture
def folder() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="noria-") as path:
        yield path


@pytest.fixture
def door(folder: str) -> Iterator[Door]:
    opened: list[FrontDoor] = []

    def open_door(script: Script) -> FrontDoor:
        fake = FrontDoor(f"ipc://{Path(folder) / 'public.sock'}", script)
        fake.description = msgspec.structs.replace(fake.description, has_chat_template=True)
        opened.append(fake.start())
        return fake

    yield open_door
    for fake in opened:
        fake.stop()


def test_the_prompt_is_asked_as_a_chat_turn_and_the_answer_printed(door: Door, folder: str, capsys: Captured) -> None:
    fake = door(words("Hel", "lo", "!"))
    assert run(["generate", "Hi", "--system", "Be kind", "--runtime-dir", folder]) == 0
    assert capsys.readouterr().out == "Hello!\n"
    asked = fake.of(Generate)[0]
    assert asked.messages == (Message("system", "Be kind"), Message("user", "Hi"))
    assert asked.prompt is None
    assert asked.sampling.seed is None


def test_raw_continues_the_prompt_and_flags_reach_the_sampling(door: Door, folder: str) -> None:
    fake = door(words("x"))
    flags = ["--max-tokens", "5", "--temperature", "0.5", "--seed", "7", "--top-p", "0.9", "--stop", "a", "--stop", "b"]
    assert run(["generate", "Hi", "--raw", *flags, "--runtime-dir", folder]) == 0
    asked = fake.of(Generate)[0]
    assert (asked.prompt, asked.messages) == ("Hi", None)
    sampling = asked.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.seed, sampling.top_p) == (5, 0.5, 7, 0.9)
    assert sampling.stop == ("a", "b")


def test_json_is_the_whole_answer(door: Door, folder: str, capsys: Captured) -> None:
    door(words("a", "b", end=End.LENGTH))
    assert run(["generate", "Hi", "--json", "--runtime-dir", folder]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["text"], found["token_ids"], found["finish_reason"]) == ("ab", [100, 101], "length")
    assert found["usage"]["output_tokens"] == 2
    assert found["model"] == "fake"


def test_a_refusal_is_one_line(door: Door, folder: str, capsys: Captured) -> None:
    door(refuse(Code.MODEL_NOT_FOUND, "there is no model x; served: fake"))
    assert run(["generate", "Hi", "--model", "x", "--runtime-dir", folder]) == 2
    assert capsys.readouterr().err == "noria: model_not_found: there is no model x; served: fake\n"


def test_an_answer_that_ends_badly_is_told_and_fails(door: Door, folder: str, capsys: Captured) -> None:
    door(words("a", end=End.ERROR, detail="out of memory"))
    assert run(["generate", "Hi", "--runtime-dir", folder]) == 1
    assert "the answer ended with error: out of memory" in capsys.readouterr().err


def test_ctrl_c_cancels_the_answer(door: Door, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(fake: FrontDoor, mail: object) -> None:
        body = getattr(mail, "body", None)
        if isinstance(body, Generate):
            fake.accept(mail)  # type: ignore[arg-type]  # it is the mail that came
            fake.say(mail.client, body.id, "half")  # type: ignore[attr-defined]  # as above

    fake = door(half)

    def interrupted(text: str) -> int:
        if text:
            raise KeyboardInterrupt
        return 0

    monkeypatch.setattr("sys.stdout.write", interrupted)
    assert run(["generate", "Hi", "--runtime-dir", folder]) == 130
    assert fake.wait_for(Cancel).body == Cancel(fake.of(Generate)[0].id)


def in_a_process(folder: str, environment: dict[str, str], output: str | None = None) -> tuple[int, bytes, str]:
    with contextlib.ExitStack() as files:
        ended = subprocess.run(
            [Path(sys.executable).parent / "noria", "generate", "Hi", "--runtime-dir", folder],
            stdout=files.enter_context(open(output, "wb")) if output else subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **environment},
            timeout=120,
            check=False,
        )
    return ended.returncode, ended.stdout or b"", ended.stderr.decode()


def test_a_terminal_that_lacks_a_character_shows_another(door: Door, folder: str) -> None:
    door(words("na\u00efve ", "\U0001f642"))
    assert in_a_process(folder, {"PYTHONIOENCODING": "ascii"}) == (0, b"na?ve ?\n", "")


def test_an_output_that_cannot_be_written_is_one_line(door: Door, folder: str) -> None:
    door(words("x"))
    status, _, errors = in_a_process(folder, {}, output="/dev/full")
    assert (status, errors) == (1, "noria: the output cannot be written: No space left on device\n")
