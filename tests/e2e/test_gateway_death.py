"""A gateway is killed under its readers: named streams go on where they broke off, and nothing accepted is lost."""

import contextlib
import itertools
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2e.harness import Stack, stack, wait_until

LONG = {"model": "tiny", "prompt": "go on", "max_tokens": 600, "ignore_eos": True, "temperature": 0}


@pytest.fixture(scope="module")
def running(narrow: Stack) -> Iterator[Stack]:
    yield narrow
    narrow.wait_idle()


@pytest.fixture
def http(running: Stack) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=running.url, timeout=240, trust_env=False) as client:
        yield client


@pytest.fixture(scope="module")
def undisturbed(running: Stack) -> str:
    answer = httpx.post(f"{running.url}/v1/completions", json=LONG, timeout=240, trust_env=False).json()
    text = answer["choices"][0]["text"]
    assert isinstance(text, str) and len(text) > 100
    return text


def kill_gateway(running: Stack) -> None:
    """As by the kernel; returns when there is another."""
    before = running.pids()["gateway"]
    os.kill(before, signal.SIGKILL)

    wait_until(lambda: succeeded(running, before), 60, "another gateway")


def succeeded(running: Stack, former: int) -> bool:
    """Whether another gateway serves."""
    with contextlib.suppress(OSError):
        return running.get("/ready")[0] == 200 and running.pids().get("gateway", former) != former
    return False


def read(http: httpx.Client, headers: dict[str, str], begun: Callable[[], None] | None = None) -> tuple[str, str, bool]:
    """Text, last event id, and whether the end came; calls `begun` once there are 40 characters. It may break."""
    text, last, done = "", "", False
    request: dict[str, Any] = {"json": {**LONG, "stream": True}, "headers": headers}
    with (
        contextlib.suppress(httpx.TransportError),
        http.stream("POST", "/v1/completions", **request) as response,
    ):
        assert response.status_code == 200, response.read()
        for line in response.iter_lines():
            if line.startswith("id: "):
                last = line.removeprefix("id: ")
            elif line.startswith("data: {"):
                text += "".join(choice["text"] for choice in json.loads(line.removeprefix("data: "))["choices"])
            done = done or line == "data: [DONE]"
            if len(text) >= 40 and begun is not None:
                begun()
                begun = None
    return text, last, done


def test_a_stream_whose_gateway_is_killed_goes_on_where_it_broke_off(
    running: Stack, http: httpx.Client, undisturbed: str
) -> None:
    gateway, attempts, struck = running.pids()["gateway"], itertools.count(), False

    def strike() -> None:
        """Kill it, unless all of the answer is on its way already."""
        nonlocal struck
        with running.held():
            struck = running.of("admission")["requests"] == 1
            if struck:
                os.kill(gateway, signal.SIGKILL)

    while not struck:
        headers = {"x-request-id": f"survivor-{next(attempts)}"}
        first, last, done = read(http, headers, strike)
    assert not done and 40 <= len(first) < len(undisturbed)
    wait_until(lambda: succeeded(running, gateway), 60, "another gateway")
    rest, _, done = read(http, {**headers, "last-event-id": last})
    assert done
    assert first + rest == undisturbed


def test_a_background_request_outlives_its_gateway(running: Stack, http: httpx.Client, undisturbed: str) -> None:
    with running.held():
        made = http.post("/v1/completions", json=LONG, headers={"x-noria-background": "true"})
        assert made.status_code == 202
        kill_gateway(running)
        assert http.get(made.headers["location"]).json()["status"] != "completed"
    answer: dict[str, Any] = {}

    def completed() -> bool:
        nonlocal answer
        answer = http.get(made.headers["location"]).json()
        return answer["status"] == "completed"

    wait_until(completed, 60, "completed")
    assert answer["choices"][0]["text"] == undisturbed


@pytest.mark.slow
def test_a_whole_answer_is_asked_for_again_by_its_name(running: Stack, http: httpx.Client, undisturbed: str) -> None:
    accepted = running.of("admission")["totals"]["accepted"]
    headers = {"idempotency-key": "again"}
    started = time.monotonic()
    with running.held(), http.stream("POST", "/v1/completions", json={**LONG, "stream": True}, headers=headers):
        kill_gateway(running)
    assert time.monotonic() - started < 60
    text, _, done = read(http, headers)
    assert done and text == undisturbed
    assert running.of("admission")["totals"]["accepted"] == accepted + 1


# Requests whose gateway hangs live on for 3 + 10 + 3 s.
IMPATIENT = {
    "NORIA_RUNTIME_HANG_TIMEOUT_S": "3",
    "NORIA_RUNTIME_PEER_TIMEOUT_S": "3",
}
GRACE_S = 16.0


@contextlib.contextmanager
def slowed(running: Stack, begun: Callable[[], bool]) -> Iterator[None]:
    """The executor is stopped for most of the time within, once all have begun: it shows life and computes very little."""
    over = threading.Event()

    def slow() -> None:
        while not over.is_set():
            if begun():
                with running.held():
                    over.wait(0.3)
            over.wait(0.015)

    thread = threading.Thread(target=slow)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_requests_that_may_be_asked_for_again_outlive_a_gateway_that_hangs(tiny_model: Path) -> None:
    """One is asked for again as soon as there is another gateway, one only when others would have been given up."""
    with (
        stack(str(tiny_model), "--dtype", "float32", environment=IMPATIENT) as running,
        httpx.Client(base_url=running.url, timeout=240, trust_env=False) as http,
        ThreadPoolExecutor(2) as threads,
    ):
        undisturbed, _, done = read(http, {})
        assert done and len(undisturbed) > 100
        accepted = running.of("admission")["totals"]["accepted"]
        named, keyed = {"x-request-id": "named"}, {"idempotency-key": "keyed"}
        begun = [threading.Event(), threading.Event()]

        with slowed(running, lambda: all(each.is_set() for each in begun)):
            asked = zip((named, keyed), (each.set for each in begun), strict=True)
            readers = [threads.submit(read, http, *each) for each in asked]
            assert all(each.wait(60) for each in begun)
            gateway = running.pids()["gateway"]
            os.kill(gateway, signal.SIGSTOP)
            stopped_s = time.monotonic()
            wait_until(lambda: succeeded(running, gateway), 60, "another gateway")
            (first, last, done), (_, _, whole) = (each.result(60) for each in readers)
            assert not done and not whole
            rest = threads.submit(read, http, {**named, "last-event-id": last})
            time.sleep(max(0.0, stopped_s + GRACE_S + 2 - time.monotonic()))
            assert running.of("admission")["streams"] == 2
        again, _, done = read(http, keyed)
        assert done and again == undisturbed
        more, _, done = rest.result(240)
        assert done and first + more == undisturbed
        assert running.of("admission")["totals"]["accepted"] == accepted + 2
