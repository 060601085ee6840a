"""Draining, and services that are started anew, while requests go on."""

import asyncio
import json
import subprocess
from pathlib import Path

import httpx
import pytest
from e2e.harness import LENIENT, Stack, stack

from noria.client import AsyncClient, ClientTimeouts, Code, Completion, Refused

_TOKENS = 400
_SERVICES = ("detokenizer", "executor", "scheduler", "admission", "gateway")


async def over_zeromq(client: AsyncClient, prompt: str) -> str:
    answer = await client.complete(prompt, max_tokens=_TOKENS, temperature=0.0, ignore_eos=True)
    assert answer.finish_reason == "length"
    return answer.text


async def over_http(client: httpx.AsyncClient, running: Stack, prompt: str) -> str:
    body = {"prompt": prompt, "max_tokens": _TOKENS, "temperature": 0, "ignore_eos": True, "stream": True}
    text, last = "", ""
    async with client.stream("POST", f"{running.url}/v1/completions", json=body) as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            last = line or last
            if line.startswith("data: {"):
                content = json.loads(line[6:])
                assert "choices" in content, content
                text += content["choices"][0]["text"]
    assert last == "data: [DONE]"
    return text


async def keep_asking(running: Stack, going: "asyncio.Task[object]") -> dict[str, set[str]]:
    """Ask over both doors until something else is done; returns the answers by prompt."""
    answers: dict[str, set[str]] = {}

    async def ask(number: int, client: AsyncClient, http: httpx.AsyncClient) -> None:
        while not going.done():
            prompt = f"Question {number % 3}"
            over = over_zeromq(client, prompt) if number % 2 else over_http(http, running, prompt)
            answers.setdefault(prompt, set()).add(await over)

    async with AsyncClient(running.endpoint) as client, httpx.AsyncClient(timeout=60) as http:
        await asyncio.gather(*(ask(number, client, http) for number in range(6)))
    return answers


def test_every_service_is_started_anew_under_load_without_a_failed_request(tiny_model: Path) -> None:
    async def run(running: Stack) -> dict[str, set[str]]:
        restarts = asyncio.create_task(asyncio.to_thread(running.noria, "restart", "all"))
        answers = await keep_asking(running, restarts)
        done = await restarts
        assert done.returncode == 0, done.stderr
        assert [line.partition(":")[0] for line in done.stdout.splitlines()] == list(_SERVICES)
        return answers

    with stack(str(tiny_model), "--dtype", "float32", environment={"OMP_NUM_THREADS": "1"}) as running:
        before = running.pids()
        answers = asyncio.run(run(running))
        assert len(answers) == 3
        assert {len(texts) for texts in answers.values()} == {1}, "answers differ"
        after = running.pids()
        assert after["supervisor"] == before["supervisor"]
        assert not [name for name in _SERVICES if after[name] == before[name]]
        assert running.stop() == 0, running.log()[-3000:]
        assert "times in a row" not in running.log()


def test_a_drain_lets_what_was_accepted_finish_and_takes_nothing_new(tiny_model: Path) -> None:
    async def run(running: Stack) -> list[str]:
        async with AsyncClient(running.endpoint) as client, httpx.AsyncClient(timeout=60) as http:
            with running.held():
                generations = [
                    client.generate("Once", max_tokens=200, temperature=0.0, ignore_eos=True) for _ in range(3)
                ]
                await asyncio.gather(*(generation.accepted() for generation in generations))
                draining = await asyncio.create_subprocess_exec(
                    *running.line("drain"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=running.environment
                )
                assert draining.stdout is not None
                said = [(await draining.stdout.readline()).decode()]
                while (await http.get(f"{running.url}/health/ready")).status_code == 200:
                    await asyncio.sleep(0.01)
                with pytest.raises(Refused) as refused:
                    await client.complete("Twice", max_tokens=1)
                assert refused.value.code is Code.NOT_READY
                response = await http.post(f"{running.url}/v1/completions", json={"prompt": "x", "max_tokens": 1})
                assert response.status_code == 503
                assert int(response.headers["retry-after"]) > 0
            for generation in generations:
                assert (await generation.result()).choices[0].finish.output_tokens == 200
            said += (await draining.stdout.read()).decode().splitlines()
            assert await draining.wait() == 0, said
            return said

    environment = {**LENIENT, "OMP_NUM_THREADS": "1", "NORIA_RUNTIME_DRAIN_TIMEOUT_S": "120"}
    with stack(str(tiny_model), "--dtype", "float32", environment=environment) as running:
        said = asyncio.run(run(running))
        assert said[0] == "3 requests are unfinished\n"
        assert said[-1].startswith("stopped the stack of ")
        assert running.process.wait(60) == 0, running.log()[-3000:]


def test_what_a_drain_cannot_finish_is_told_to_try_again_and_goes_on_in_the_next_life(tiny_model: Path) -> None:
    prompts = [f"Question {number}" for number in range(12)]
    names = [f"r-{number}" for number in range(12)]

    async def ask(running: Stack, cut: bool) -> list[Completion]:
        async with AsyncClient(running.endpoint, patience=ClientTimeouts(reconnect_s=60.0)) as client:
            generations = [
                client.generate(prompt, request_id=name, max_tokens=600, temperature=0.0, ignore_eos=True)
                for prompt, name in zip(prompts, names, strict=True)
            ]
            if not cut:
                return await asyncio.gather(*(generation.result() for generation in generations))
            while (delta := await generations[0].next()) and not delta.text:
                pass  # a part of a character
            with running.held():
                await asyncio.gather(*(generation.accepted() for generation in generations))
                down = asyncio.create_task(asyncio.to_thread(running.noria, "down"))
                results = await asyncio.gather(*(generation.result() for generation in generations))
            assert (await down).returncode == 0
            return results

    impatient = ("--drain-timeout", "0.3")
    with stack(str(tiny_model), "--dtype", "float32", *impatient, environment=LENIENT) as running:
        cut = asyncio.run(ask(running, True))
        assert running.process.wait(60) == 0, running.log()[-3000:]
        assert {answer.finish_reason for answer in cut} == {"shed"}
        running.start()
        running.wait_ready()
        whole = asyncio.run(ask(running, False))
        assert {(answer.finish_reason, answer.usage.output_tokens) for answer in whole} == {("length", 600)}
        assert all(answer.text.startswith(before.text) for answer, before in zip(whole, cut, strict=True))
        assert any(before.text for before in cut)
