"""Tenants and classes on a whole stack: who is let in, what it costs, and a configuration that changes under load."""

import asyncio
import contextlib
import http.client
import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from e2e.harness import LENIENT, Stack, stack, wait_until

from noria.cli.commands.keys import hash_key
from noria.client import Client, Code, Refused

TENANTS: dict[str, str] = {
    "acme": "",
    "beta": "",
    "count": "",
    "small": "tokens_per_minute = 60\nburst_tokens = 60",
    "single": "concurrency_max = 1",
    "solitary": "",
    "shadowed": "",
    "twin": "",
    "root": 'classes = ["admin", "standard"]',
}
CLASSES = "[classes.narrow]\nrank = 1\nqueue_requests_max = 1\n"


def configuration(tenants: dict[str, str]) -> str:
    """A file in which each tenant's API key is its name."""
    tables = [f'[tenants.{name}]\nkeys = ["{hash_key(name)}"]\n{lines}\n' for name, lines in tenants.items()]
    return CLASSES + "".join(tables)


@pytest.fixture(scope="module")
def governed(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A tiny random model for several tenants."""
    file = tmp_path_factory.mktemp("governed") / "noria.toml"
    file.write_text(configuration(TENANTS))
    options = ("--dtype", "float32", "--config", str(file))
    with stack(str(tiny_model), *options, environment=LENIENT, api_key="root") as running:
        yield running


def openai_client(running: Stack, key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{running.url}/v1", api_key=key, max_retries=0)


def complete(
    running: Stack, key: str, prompt: list[int], headers: dict[str, str] | None = None, **body: Any
) -> httpx.Response:
    asked = {"prompt": prompt, "max_tokens": 4, "temperature": 0, "ignore_eos": True, **body}
    sent = {"authorization": f"Bearer {key}", **(headers or {})}
    return httpx.post(f"{running.url}/v1/completions", json=asked, headers=sent, timeout=240)


def usage(running: Stack, tenant: str) -> list[dict[str, Any]]:
    done = running.noria("usage", "--json", "--tenant", tenant)
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


@pytest.mark.parametrize("key", ["nobody", "acm"])
def test_an_unknown_key_is_a_401(governed: Stack, key: str) -> None:
    client = openai_client(governed, key)
    with pytest.raises(openai.AuthenticationError) as caught:
        client.completions.create(model="", prompt="x")
    assert caught.value.code == "invalid_api_key"
    assert httpx.post(f"{governed.url}/v1/completions", json={"prompt": "x"}, timeout=60).status_code == 401


def test_the_insides_are_for_operators_alone(governed: Stack) -> None:
    for key, status in (("", 401), ("nobody", 401), ("acme", 403), ("root", 200)):
        headers = {"authorization": f"Bearer {key}"} if key else {}
        assert httpx.get(f"{governed.url}/debug/state", headers=headers, timeout=60).status_code == status
    for path in ("/ready", "/health", "/v1/models"):
        assert httpx.get(f"{governed.url}{path}", timeout=60).status_code == 200


def test_a_used_up_quota_is_a_429_that_says_when_it_is_there_again(governed: Stack) -> None:
    client = openai_client(governed, "small")
    assert complete(governed, "small", [5] * 30, max_tokens=30).status_code == 200
    with pytest.raises(openai.RateLimitError) as caught:
        client.completions.create(model="", prompt=[5] * 20, max_tokens=10)
    headers = caught.value.response.headers
    wait_ms = int(headers["retry-after-ms"])
    # A token a second comes in, 30 are wanted, and a moment has passed.
    assert 15_000 < wait_ms <= 30_000 and int(headers["retry-after"]) == -(-wait_ms // 1000)


def test_more_at_a_time_than_allowed_is_a_429(governed: Stack) -> None:
    with Client(governed.endpoint, credential="single") as client:
        with governed.held():  # it is not done before it is asked for another one
            first = client.generate(token_ids=[5, 6], max_tokens=400, ignore_eos=True)
            first.accepted()
            refused = complete(governed, "single", [5, 6])
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "quota")
        assert "retry-after" in refused.headers
        first.close()
        wait_until(lambda: complete(governed, "single", [5, 6]).status_code == 200, 60, "the place is free again")


def test_a_full_queue_is_a_503(governed: Stack) -> None:
    refused = complete(governed, "acme", [5], n=2, headers={"x-noria-class": "narrow"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
    assert int(refused.headers["retry-after"]) >= 1


@pytest.mark.parametrize("header", ["x-noria-ttl-ms", "x-noria-ttl-first-ms"])
def test_a_time_to_live_that_cannot_be_kept_is_a_504(governed: Stack, header: str) -> None:
    with governed.held():
        late = complete(governed, "acme", [5] * 300, max_tokens=100, headers={header: "1"})
    assert (late.status_code, late.json()["error"]["code"]) == (504, "deadline")


def test_a_class_is_named_by_header_or_service_tier_and_bounded_by_the_tenant(governed: Stack) -> None:
    assert complete(governed, "beta", [7], headers={"x-noria-class": "interactive"}).status_code == 200
    assert complete(governed, "beta", [7], service_tier="flex").status_code == 200
    refused = complete(governed, "beta", [7], headers={"x-noria-class": "admin"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "service_tier")
    assert complete(governed, "root", [7], headers={"x-noria-class": "admin"}).status_code == 200
    wait_until(lambda: len(usage(governed, "beta")) == 2, 60, "usage is written")
    assert {row["traffic_class"] for row in usage(governed, "beta")} == {"interactive", "batch"}


def test_two_tenants_with_one_prompt_share_nothing(governed: Stack) -> None:
    prompt = [(each * 7) % 200 + 10 for each in range(100)]

    def cached(key: str) -> int:
        return int(complete(governed, key, prompt).json()["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert [cached("acme"), cached("acme") > 0, cached("beta"), cached("root")] == [0, True, 0, 0]


def test_what_a_tenant_computes_and_finds_is_the_same_beside_anothers_twin(governed: Stack) -> None:
    prompt = [(each * 11) % 190 + 20 for each in range(120)]
    asked: list[tuple[list[int], int]] = [
        (prompt, 1),
        ([*prompt, 30, 31], 1),
        (prompt[:70], 1),
        ([9, *prompt], 2),
        (prompt, 1),
    ]

    def course(key: str) -> list[tuple[int, list[str]]]:
        """What was found in the cache by each request, and the answers; one request after the other."""
        bodies = [complete(governed, key, ids, n=choices, seed=7).json() for ids, choices in asked]
        return [
            (int(body["usage"]["prompt_tokens_details"]["cached_tokens"]), [each["text"] for each in body["choices"]])
            for body in bodies
        ]

    solitary = course("solitary")
    assert [cached for cached, _ in solitary] == [0, 112, 64, 0, 112]
    with ThreadPoolExecutor(2) as pool:
        # The twin has been there with everything, and comes again at the same time.
        assert course("twin") == solitary
        again, shadowed = pool.submit(course, "twin"), pool.submit(course, "shadowed")
        assert shadowed.result() == solitary
        assert min(cached for cached, _ in again.result()) >= 64

    def bill(tenant: str) -> dict[str, int]:
        (row,) = usage(governed, tenant)
        return {
            name: row[name]
            for name in ("requests", "prompt_tokens", "cached_tokens", "output_tokens", "computed_tokens")
        }

    def told() -> int:
        """What is known to be computed of either."""
        if not Path(governed.runtime_dir, "state", "noria.sqlite").exists():
            return 0
        return min(sum(row["computed_tokens"] for row in usage(governed, key)) for key in ("solitary", "shadowed"))

    # Every token but an answer's last is computed, unless it was found; the second of two choices finds 112 of the first's.
    computed = sum(len(ids) * n - cached + 3 * n for (ids, n), (cached, _) in zip(asked, solitary, strict=True)) - 112
    wait_until(lambda: told() >= computed, 60, "all costs are known")
    assert bill("solitary") == bill("shadowed") and told() == computed


def test_what_is_recorded_is_what_the_answers_said(governed: Stack) -> None:
    answers = [complete(governed, "count", [9] * (20 + each), max_tokens=3 + each).json()["usage"] for each in range(6)]
    refused = complete(governed, "count", [9], headers={"x-noria-class": "admin"})
    assert refused.status_code == 400

    def recorded() -> bool:
        rows = usage(governed, "count") if Path(governed.runtime_dir, "state", "noria.sqlite").exists() else []
        return bool(rows) and rows[0]["requests"] == 6 and rows[0]["computed_tokens"] > 0

    wait_until(recorded, 60, "usage is written")
    (row,) = usage(governed, "count")
    assert row["prompt_tokens"] == sum(each["prompt_tokens"] for each in answers)
    assert row["output_tokens"] == sum(each["completion_tokens"] for each in answers)
    assert row["cached_tokens"] == sum(each["prompt_tokens_details"]["cached_tokens"] for each in answers)
    # Each output token but the last of an answer is computed once, and so is what of a prompt was not in the cache.
    least = row["prompt_tokens"] - row["cached_tokens"] + row["output_tokens"] - 6
    wait_until(lambda: usage(governed, "count")[0]["computed_tokens"] >= least, 60, "all costs are known")
    (row,) = usage(governed, "count")
    assert row["computed_tokens"] == least + row["wasted_tokens"]
    assert row["cache_block_s"] > 0


def requests_of(running: Stack, tenant: str) -> int:
    traffic = running.of("admission")["traffic"]
    return sum(each["accepted"] for each in traffic if each["tenant"] == tenant)


def test_a_repetition_under_one_idempotency_key_is_neither_run_nor_charged_again(governed: Stack) -> None:
    before = requests_of(governed, "acme")
    headers = {"idempotency-key": "pay-once"}
    sampled = {"temperature": 1, "max_tokens": 12}
    first, second = (complete(governed, "acme", [3, 4], headers=headers, **sampled) for _ in range(2))
    assert first.json()["choices"] == second.json()["choices"]
    assert first.json()["usage"]["completion_tokens"] == 12
    assert requests_of(governed, "acme") == before + 1
    other = complete(governed, "acme", [3, 5], headers=headers, **sampled)
    assert other.status_code == 409
    # The same key of another tenant is another request.
    assert complete(governed, "beta", [3, 5], headers=headers, **sampled).status_code == 200


def test_a_caller_that_hung_up_finds_its_answer_under_its_idempotency_key(governed: Stack) -> None:
    accepted = requests_of(governed, "acme") + 1
    headers = {"authorization": "Bearer acme", "idempotency-key": "come-back"}
    body = {"prompt": [3, 4], "max_tokens": 60, "ignore_eos": True, "seed": 5}
    address = governed.url.removeprefix("http://")
    with governed.held(), contextlib.closing(http.client.HTTPConnection(address, timeout=60)) as caller:
        caller.request("POST", "/v1/completions", json.dumps(body), headers)
        wait_until(lambda: requests_of(governed, "acme") == accepted, 60, "it is accepted")
    again = httpx.post(f"{governed.url}/v1/completions", json=body, headers=headers, timeout=60)
    assert again.json()["usage"]["completion_tokens"] == 60
    assert requests_of(governed, "acme") == accepted
    governed.wait_idle()


def test_a_preview_tells_the_course_and_the_refusal(governed: Stack) -> None:
    sent = {"authorization": "Bearer acme", "x-noria-class": "batch"}
    body = {"prompt": [5] * 40, "max_tokens": 10}
    told = httpx.post(f"{governed.url}/v1/preview", json=body, headers=sent, timeout=60).json()
    assert (told["admitted"], told["traffic_class"], told["prompt_tokens"]) == (True, "batch", 40)
    assert 0 <= told["start_ms"] <= told["first_token_ms"] <= told["finish_ms"] < 60_000
    assert httpx.post(f"{governed.url}/v1/preview", json=body, timeout=60).status_code == 401
    with Client(governed.endpoint, credential="small") as client:
        refused = client.preview(token_ids=[5] * 50, max_tokens=30)
        assert (refused.admitted, refused.code) == (False, Code.INVALID)
        assert client.identify().tenant == "small"
        with pytest.raises(Refused, match="not known"):
            client.identify("nobody")


def test_the_command_line_asks_with_a_key(governed: Stack) -> None:
    command = ("generate", "x", "--raw", "--max-tokens", "2")
    refused = governed.noria(*command)
    assert refused.returncode == 2 and "API key" in refused.stderr
    assert governed.noria(*command, NORIA_API_KEY="acme").returncode == 0
    denied = governed.noria(*command, "--api-key", "acme", "--class", "admin")
    assert denied.returncode == 2 and "'admin' may not be used" in denied.stderr


def test_a_changed_file_is_taken_at_a_hang_up_under_load_and_loses_nothing(tiny_model: Path, tmp_path: Path) -> None:
    file = tmp_path / "noria.toml"
    file.write_text(configuration({"acme": "", "root": TENANTS["root"]}))
    options = ("--dtype", "float32", "--config", str(file))
    with stack(str(tiny_model), *options, environment=LENIENT, api_key="root") as running:

        async def load(client: httpx.AsyncClient, number: int) -> int:
            body = {"prompt": [5, number], "max_tokens": 60, "ignore_eos": True}
            answer = await client.post(
                f"{running.url}/v1/completions", json=body, headers={"authorization": "Bearer acme"}
            )
            return (
                int(answer.json()["usage"]["completion_tokens"]) if answer.status_code == 200 else -answer.status_code
            )

        def change(text: str, told: str) -> None:
            count = running.log().count(told)
            file.write_text(text)
            running.process.send_signal(signal.SIGHUP)
            wait_until(lambda: running.log().count(told) > count, 60, told)

        async def run() -> list[int]:
            async with httpx.AsyncClient(timeout=240, limits=httpx.Limits(max_connections=100)) as client:
                with running.held():  # all of them are under way at both changes
                    tasks = [asyncio.ensure_future(load(client, number)) for number in range(48)]
                    while running.of("admission")["requests"] < len(tasks):
                        await asyncio.sleep(0.01)
                    await asyncio.to_thread(change, configuration({"acme": "", "late": "", "root": TENANTS["root"]}),
                                            "configuration reloaded")  # fmt: skip
                    await asyncio.to_thread(change, "[tenants.acme]\nweight = -1\n", "configuration not reloaded")
                return await asyncio.gather(*tasks)

        assert complete(running, "late", [5]).status_code == 401
        assert asyncio.run(run()) == [60] * 48
        wait_until(lambda: complete(running, "late", [5]).status_code == 200, 60, "the new tenant is known")
        assert complete(running, "acme", [5]).status_code == 200
        assert "tenants.acme.weight" in running.log()
        # The third change takes acme's key away; whoever restarts reads the file as it was last accepted.
        change(configuration({"late": "", "root": TENANTS["root"]}), "configuration reloaded")
        wait_until(lambda: complete(running, "acme", [5]).status_code == 401, 60, "the old tenant is gone")
        running.wait_idle()
    assert os.environ.get("NORIA_API_KEY") is None


def test_what_a_request_waited_for_is_told_by_its_id_to_operators_alone(governed: Stack) -> None:
    sent = {"x-request-id": "tell-me"}
    assert complete(governed, "acme", [3, 4, 5], headers=sent).status_code == 200

    def told() -> list[str]:
        answer = httpx.get(
            f"{governed.url}/debug/why/tell-me", headers={"authorization": "Bearer root"}, timeout=60
        ).json()
        lines: list[str] = answer.get("why", [])
        return lines

    wait_until(lambda: any("ended: length, after 4 tokens" in line for line in told()), 60, "its end is told")
    assert any("class standard: 3 prompt tokens" in line for line in told())
    for key, status in (("acme", 403), ("nobody", 401)):
        headers = {"authorization": f"Bearer {key}"}
        assert httpx.get(f"{governed.url}/debug/why/tell-me", headers=headers, timeout=60).status_code == status
    shown = governed.noria("why", "tell-me")
    assert shown.returncode == 0 and "ended: length, after 4 tokens" in shown.stdout
    assert governed.noria("why", "nobody-asked").returncode == 1
