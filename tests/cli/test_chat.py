"""The conversation: what is remembered, what is forgotten, what a command does."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from noria.cli.commands.chat import converse
from noria.client import Delta, Finish, Refused
from noria.proto.frontdoor import Code


class FakeClient:
    """Answers each turn with the next of its scripts: a text, a refusal or Ctrl-C in the middle."""

    def __init__(self, *answers: str | BaseException) -> None:
        self.answers = list(answers)
        self.asked: list[list[dict[str, str]]] = []
        self.closed = 0

    def generate(self, prompt: str | None = None, *, messages: Sequence[Any], **options: object) -> "FakeGeneration":
        assert prompt is None
        self.asked.append(list(messages))
        return FakeGeneration(self, self.answers.pop(0))


class FakeGeneration:
    def __init__(self, client: FakeClient, answer: str | BaseException) -> None:
        self.client = client
        self.answer = answer

    def __enter__(self) -> "FakeGeneration":
        return self

    def __exit__(self, *_: object) -> None:
        self.client.closed += 1

    def __iter__(self) -> Iterator[Delta]:
        yield Delta(0, "")
        if isinstance(self.answer, BaseException):
            raise self.answer
        yield Delta(0, self.answer, finish=Finish("stop"))


def lines(*typed: str) -> Callable[[], str | None]:
    waiting = [*typed]
    return lambda: waiting.pop(0) if waiting else None


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def talk(client: FakeClient, *typed: str, system: str = "") -> list[list[dict[str, str]]]:
    converse(client, system, {}, lines(*typed))  # type: ignore[arg-type]  # the fake has the part that is used
    return client.asked


def test_each_turn_is_asked_with_all_that_was_said(capsys: pytest.CaptureFixture[str]) -> None:
    client = FakeClient("hello", "fine")
    asked = talk(client, "hi", "how are you?", system="be kind")
    system = {"role": "system", "content": "be kind"}
    assert asked == [[system, user("hi")], [system, user("hi"), assistant("hello"), user("how are you?")]]
    assert capsys.readouterr().out == "hello\nfine\n"
    assert client.closed == 2


def test_reset_forgets_all_but_the_system_prompt() -> None:
    system = {"role": "system", "content": "s"}
    asked = talk(FakeClient("a", "b"), "one", "/reset", "two", system="s")
    assert asked == [[system, user("one")], [system, user("two")]]


def test_exit_ends_and_what_follows_is_not_asked() -> None:
    assert talk(FakeClient(), "/exit", "more") == []


def test_ctrl_c_cancels_the_answer_and_the_turn_is_not_remembered() -> None:
    client = FakeClient(KeyboardInterrupt(), "b")
    assert talk(client, "one", "two") == [[user("one")], [user("two")]]
    assert client.closed == 2


def test_a_refusal_is_told_and_the_conversation_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    client = FakeClient(Refused(Code.CONTEXT_LENGTH, "too long"), "b")
    assert talk(client, "one", "two") == [[user("one")], [user("two")]]
    assert "too long" in capsys.readouterr().err


def test_empty_lines_and_unknown_commands_ask_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert talk(FakeClient(), "", "  ", "/rest") == []
    assert "/rest" in capsys.readouterr().out
