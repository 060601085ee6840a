"""Readers of a chaos run: each asks for one answer after the other, over ZeroMQ or HTTP, and records when tokens came."""

import asyncio
import itertools
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import httpx
from chaos.kill_plan import PromptTask

from noria.client import AsyncClient, ClientError, ClientTimeouts, Code, Refused

_RETRY_S = 0.1
_TIMEOUT_S = 120.0


@dataclass
class ChaosAnswer:
    """One answer as it was received. Times are of the wall clock; `failure` says why it was lost or wrong."""

    reader: str
    question: int
    began_s: float = 0.0
    ended_s: float = 0.0
    arrivals_s: list[float] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    text: str = ""
    resumed: int = 0
    failure: str = ""

    def accepted(self) -> None:
        """Record that the request was accepted: from now on its answer must not be lost."""
        self.began_s = self.began_s or time.time()

    def came(self) -> None:
        """Record that a part of the answer arrived."""
        self.accepted()
        self.arrivals_s.append(time.time())


Expected = dict[int, tuple[tuple[int, ...], str]]


class StreamReaders:
    """All readers of a run. `expected`: ids and text of the answer to each prompt; empty in the run that finds them."""

    def __init__(self, endpoint: str, url: str, prompts: Sequence[PromptTask], expected: Expected) -> None:
        self.answers: list[ChaosAnswer] = []
        self.refusals = 0
        self._endpoint = endpoint
        self._url = url
        self._prompts = prompts
        self._expected = expected
        self._numbers = itertools.count()

    def answers_under_way(self) -> bool:
        """Return whether an answer has begun and not ended."""
        return any(each.began_s and not each.ended_s for each in self.answers)

    async def read_zeromq(self, readers: int, go_on: Callable[[], bool]) -> None:
        """Read with several readers over one client's socket."""
        timeouts = ClientTimeouts(accept_s=_TIMEOUT_S, answer_s=_TIMEOUT_S, reconnect_s=_TIMEOUT_S)
        async with AsyncClient(self._endpoint, patience=timeouts) as client:
            await asyncio.gather(*(self._loop("zeromq", go_on, client, None) for _ in range(readers)))

    async def read_http(self, readers: int, go_on: Callable[[], bool]) -> None:
        """Read with several readers over HTTP."""
        async with httpx.AsyncClient(timeout=httpx.Timeout(_TIMEOUT_S, connect=2.0)) as http:
            await asyncio.gather(*(self._loop("http", go_on, None, http) for _ in range(readers)))

    async def _loop(
        self, reader: str, go_on: Callable[[], bool], client: AsyncClient | None, http: httpx.AsyncClient | None
    ) -> None:
        while go_on():
            number = next(self._numbers)
            answer = ChaosAnswer(reader, number % len(self._prompts))
            self.answers.append(answer)
            name = f"chaos-{time.time_ns():x}-{number}"
            if client is not None:
                await self._zeromq(client, name, answer)
            elif http is not None:
                await self._http(http, name, answer)
            answer.ended_s = time.time()
            self.check(answer)

    def check(self, answer: ChaosAnswer) -> None:
        """Compare an answer with the expected one; a difference is its `failure`."""
        expected = self._expected.get(answer.question)
        if answer.failure or expected is None:
            return
        ids, text = expected
        if answer.reader == "zeromq" and tuple(answer.ids) != ids:
            answer.failure = f"other ids: {_difference(answer.ids, ids)}"
        elif answer.text != text:
            answer.failure = f"other text: {_difference(answer.text, text)}"

    async def _zeromq(self, client: AsyncClient, name: str, answer: ChaosAnswer) -> None:
        question = self._prompts[answer.question]
        until_s = time.time() + _TIMEOUT_S
        while True:
            try:
                async for delta in client.generate(
                    question.prompt, request_id=name, max_tokens=question.tokens, temperature=0.0, ignore_eos=True
                ):
                    answer.came()
                    del answer.ids[delta.start :]
                    answer.ids.extend(delta.token_ids)
                    answer.text = answer.text[: delta.characters] + delta.text
                    if delta.finish is not None and delta.finish.reason != "length":
                        answer.failure = f"ended by {delta.finish.reason}: {delta.finish.detail}"
                return
            except Refused as error:
                if error.code is not Code.NOT_READY or answer.began_s or time.time() > until_s:
                    answer.failure = f"refused: {error}"
                    return
                self.refusals += 1
                await asyncio.sleep(_RETRY_S)
            except ClientError as error:
                answer.failure = f"{type(error).__name__}: {error}"
                return

    async def _http(self, http: httpx.AsyncClient, name: str, answer: ChaosAnswer) -> None:
        """Read one answer over HTTP; a broken connection is made again with the same key, and the answer goes on where it stopped."""
        until_s = time.time() + _TIMEOUT_S
        last_id = ""
        while time.time() < until_s:
            try:
                last_id, over = await self._http_once(http, name, last_id, answer)
                if over:
                    return
            except (httpx.HTTPError, OSError):
                pass
            answer.resumed += bool(answer.began_s)
            await asyncio.sleep(_RETRY_S)
        answer.failure = "no answer over HTTP"

    async def _http_once(
        self, http: httpx.AsyncClient, name: str, last_id: str, answer: ChaosAnswer
    ) -> tuple[str, bool]:
        question = self._prompts[answer.question]
        body = {
            "prompt": question.prompt, "max_tokens": question.tokens, "temperature": 0, "ignore_eos": True, "stream": True,
        }  # fmt: skip
        headers = {"Idempotency-Key": name, **({"Last-Event-ID": last_id} if last_id else {})}
        async with http.stream("POST", f"{self._url}/v1/completions", json=body, headers=headers) as response:
            if response.status_code != httpx.codes.OK:
                content = (await response.aread()).decode(errors="replace")
                if response.status_code == httpx.codes.SERVICE_UNAVAILABLE:
                    self.refusals += 1
                    return last_id, False
                answer.failure = f"HTTP {response.status_code}: {content}"
                return last_id, True
            answer.accepted()
            fresh = "" if not last_id else answer.text
            async for line in response.aiter_lines():
                if line.startswith("id:"):
                    last_id = line[3:].strip()
                if not line.startswith("data:"):
                    continue
                if line == "data: [DONE]":
                    return last_id, True
                content = json.loads(line[5:])
                if "error" in content:
                    return last_id, False
                for choice in content["choices"]:
                    fresh += choice["text"]
                    if not answer.text.startswith(fresh):  # beyond what came before the connection broke
                        answer.text = fresh
                        answer.came()
        return last_id, False


def _difference(found: Sequence[object], expected: Sequence[object]) -> str:
    at = next(
        (n for n, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b), min(len(found), len(expected))
    )
    return f"{len(found)} instead of {len(expected)}, from {at} on {found[at : at + 4]!r} instead of {expected[at : at + 4]!r}"
