"""Tokenization off the loop: fair among clients, long texts beside short ones, every job answered once."""

import threading
import time
from collections.abc import Callable, Sequence

import pytest
from fakes.vocabularies import byte_level

from noria.proto.frontdoor import Code, Message
from noria.services.admission.core.state.events import TokenizeJob
from noria.services.admission.tokenizer_pool import LONG_CHARACTERS, FairTokenizeQueue, TokenizeResult, TokenizerPool
from noria.shared.model.chat_template import ChatTemplate

TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


def job(number: int, client: str = "a", characters: int = 1, prompt: str | None = "hi") -> TokenizeJob:
    return TokenizeJob(number, client, characters, prompt, None, "")


def order(queue: FairTokenizeQueue) -> list[int]:
    numbers = []
    while (each := queue.pop()) is not None:
        numbers.append(each.number)
    return numbers


def test_a_client_with_many_jobs_does_not_keep_another_waiting() -> None:
    queue = FairTokenizeQueue()
    for number in range(5):
        queue.push(job(number, "many"))
    queue.push(job(10, "one"))
    assert order(queue) == [0, 10, 1, 2, 3, 4]


def test_clients_are_served_equally_by_characters_not_by_jobs() -> None:
    queue = FairTokenizeQueue()
    for number in range(3):
        queue.push(job(number, "large", characters=100))
    for number in range(10, 20):
        queue.push(job(number, "small", characters=30))
    assert order(queue)[:6] == [0, 10, 11, 12, 13, 1]


def test_a_client_back_from_idle_starts_at_the_present() -> None:
    queue = FairTokenizeQueue()
    queue.push(job(1, "old", characters=10))
    queue.push(job(2, "new", characters=1000))
    assert order(queue) == [1, 2]
    for number in (3, 4, 5):
        queue.push(job(number, "old", characters=10))
    queue.push(job(6, "new", characters=10))
    assert order(queue) == [3, 4, 5, 6]


def test_a_removed_job_is_not_done() -> None:
    queue = FairTokenizeQueue()
    jobs = [job(1), job(2), job(3, "b")]
    for each in jobs:
        queue.push(each)
    queue.remove(jobs[0])
    queue.remove(jobs[2])
    queue.remove(jobs[2])
    assert order(queue) == [2]
    assert len(queue) == 0


class Pool:
    """A pool whose results can be waited for."""

    def __init__(self, template: str | None = TEMPLATE) -> None:
        self.woken = threading.Event()
        self.results: list[TokenizeResult] = []
        tokenizer = byte_level()
        self.tokenizer = tokenizer
        self.pool = TokenizerPool(tokenizer, ChatTemplate(template, tokenizer), self.woken.set)

    def wait(self, enough: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + 60
        while not enough():
            assert time.monotonic() < deadline_s
            self.woken.wait(0.1)
            self.woken.clear()
            self.results += self.pool.collect()

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.close()


def test_prompts_and_messages_become_ids() -> None:
    with Pool() as pool:
        pool.pool.submit(job(1, prompt="hello"))
        pool.pool.submit(TokenizeJob(2, "a", 5, None, (Message("user", "hello"),), ""))
        pool.wait(lambda: len(pool.results) == 2)
        found = {result.job.number: result for result in pool.results}
        assert list(found[1].ids) == pool.tokenizer.encode("hello")
        assert list(found[2].ids) == pool.tokenizer.encode("hello", add_special_tokens=False)
        assert pool.pool.counts() == {"waiting": 0, "working": 0}


def test_a_template_that_refuses_says_why() -> None:
    with Pool("{{ raise_exception('roles must alternate') }}") as pool:
        pool.pool.submit(TokenizeJob(1, "a", 5, None, (Message("user", "x"),), ""))
        pool.wait(lambda: len(pool.results) == 1)
        (result,) = pool.results
        assert result.code is Code.INVALID
        assert result.parameter == "messages"
        assert "roles must alternate" in result.problem


class SlowTemplate(ChatTemplate):
    """Renders once it may."""

    gate = threading.Event()

    def render_ids(self, messages: Sequence[Message]) -> list[int]:
        assert self.gate.wait(60)
        return super().render_ids(messages)


def test_short_texts_pass_long_ones() -> None:
    with Pool() as pool:
        template = SlowTemplate(TEMPLATE, pool.tokenizer)
        pool.pool.close()
        pool.pool = TokenizerPool(pool.tokenizer, template, pool.woken.set)
        for number in range(4):
            pool.pool.submit(TokenizeJob(number, "long", LONG_CHARACTERS + 1, None, (Message("user", "x"),), ""))
        for number in range(10, 30):
            pool.pool.submit(job(number, "short", 2))
        # The long ones take for ever, as far as the short ones are concerned: one thread is left to these.
        pool.wait(lambda: len(pool.results) == 20)
        assert sorted(result.job.number for result in pool.results) == list(range(10, 30))
        template.gate.set()
        pool.wait(lambda: len(pool.results) == 24)
        assert [result.job.number for result in pool.results[20:]] == [0, 1, 2, 3]


@pytest.mark.parametrize("waiting", [True, False])
def test_an_abandoned_job_holds_nothing_up(waiting: bool) -> None:
    with Pool() as pool:
        for number in range(4):
            pool.pool.submit(job(number))
        pool.pool.abandon(3 if waiting else 0)
        pool.pool.abandon(99)
        pool.wait(lambda: pool.pool.counts() == {"waiting": 0, "working": 0})
        assert {result.job.number for result in pool.results} >= {1, 2}
