"""The console's feed of a gateway whose stack does not answer, and that stops while the console is open."""

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from gateway.test_gateway import Gateway

from noria.services.gateway.monitoring.live_subscribers import LiveSubscriber


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    gateway = Gateway(tmp_path)
    yield gateway
    if gateway.thread.is_alive():
        gateway.close()


def test_services_that_do_not_answer_are_told_as_silent_and_a_stop_ends_the_feed(gateway: Gateway) -> None:
    with httpx.stream("GET", f"{gateway.url}/console/feed", timeout=60, trust_env=False) as response:
        assert response.status_code == 200
        lines = (line for line in response.iter_lines() if line)
        assert next(lines) == "event: state"
        state = json.loads(next(lines).removeprefix("data: "))
        told = {each["service"]: each["state"] for each in state["services"]}
        assert told["scheduler"] == told["admission"] == "silent"
        gateway.actor.stop()
        begun = time.monotonic()
        for _ in lines:  # which end as a response does that is whole
            pass
        gateway.thread.join(60)
    assert not gateway.thread.is_alive()
    assert time.monotonic() - begun < 15, "an open response may have twenty seconds"
    gateway.http.close()
    gateway.openai.close()
    gateway.door.stop()


def test_the_metrics_page_says_when_nobody_answers_and_the_page_is_there_all_the_same(gateway: Gateway) -> None:
    assert gateway.http.get("/metrics/nobody").status_code == 404
    assert gateway.http.get("/metrics/scheduler").status_code == 503
    lines = gateway.http.get("/metrics").text.splitlines()
    assert 'noria_service_up{service="gateway"} 1' in lines
    assert 'noria_service_up{service="scheduler"} 0' in lines
    page = gateway.http.get("/console/main.js")
    assert page.headers["content-type"].startswith("text/javascript")
    assert page.headers["x-content-type-options"] == "nosniff"


def test_a_console_that_does_not_read_loses_the_oldest_events_and_is_told_so() -> None:
    subscriber = LiveSubscriber()
    for number in range(100):
        subscriber.put(b"%d" % number)
    subscriber.close()

    async def everything() -> list[bytes]:
        found = []
        while event := await subscriber.next():
            found.append(event)
        return found

    assert asyncio.run(everything()) == [b"%d" % number for number in range(36, 100)]
    assert subscriber.missed == 36
