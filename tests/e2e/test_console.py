"""The console: what is served, who may see it, what its feed tells, and that a browser can click through it."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2e.harness import Stack, stack, wait_until
from fakes.browser import Browser, find

from noria.cli.commands.keys import hash_key
from noria.client import AsyncClient
from noria.services.gateway.api.request_bodies import GenerationBody

ROOT = Path(__file__).parents[2]
FILES = sorted(each.name for each in (ROOT / "services/gateway/monitoring/console").iterdir())
OPERATOR = {"authorization": "Bearer root"}
CLASSES = {"interactive", "standard", "batch"}
TENANTS = {"acme": "weight = 2.0", "beta": "", "root": 'classes = ["admin", "standard"]'}
BROWSER = find()


@pytest.fixture(scope="module")
def watched(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Two tenants and an operator, whose keys are their names, and a cache that is too small for all at once."""
    file = tmp_path_factory.mktemp("watched") / "noria.toml"
    file.write_text(
        "".join(f'[tenants.{name}]\nkeys = ["{hash_key(name)}"]\n{more}\n' for name, more in TENANTS.items())
    )
    small = ("--max-requests-per-batch", "16", "--num-blocks", "140", "--max-model-tokens", "2048")
    environment = {"OMP_NUM_THREADS": "1", "NORIA_RUNTIME_DRAIN_TIMEOUT_S": "1"}
    with stack(str(tiny_model), "--config", str(file), *small, environment=environment, api_key="root") as running:
        yield running


@contextmanager
def load(endpoint: str, at_once: int) -> Iterator[None]:
    """Keep so many requests of both tenants and all classes under way."""
    over = threading.Event()

    async def one(client: AsyncClient, number: int) -> None:
        traffic_class = ("interactive", "standard", "batch")[number % 3]
        credential = ("acme", "beta")[number % 2]
        options: dict[str, Any] = {"credential": credential, "traffic_class": traffic_class, "ignore_eos": True}
        await client.complete("hello " * (1 + number % 40), max_tokens=20 + number % 100, **options)

    async def run() -> None:
        async with AsyncClient(endpoint) as client:
            number, under_way = 0, set[asyncio.Task[None]]()
            while not over.is_set():
                while len(under_way) < at_once:
                    number += 1
                    task = asyncio.get_running_loop().create_task(one(client, number))
                    under_way.add(task)
                    task.add_done_callback(under_way.discard)
                await asyncio.sleep(0.01)
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


Events = list[tuple[str, dict[str, Any]]]


def told(running: Stack, enough: Callable[[Events], bool]) -> tuple[Events, float]:
    """The events of the feed until there are enough, and how many seconds that took."""
    found: Events = []
    begun = time.monotonic()
    with httpx.stream("GET", f"{running.url}/console/feed", headers=OPERATOR, timeout=60) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        name = ""
        for line in response.iter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                found.append((name, json.loads(line.removeprefix("data: "))))
                if enough(found):
                    break
    return found, time.monotonic() - begun


def test_every_part_of_the_page_is_served_and_nothing_comes_from_elsewhere(watched: Stack) -> None:
    page = httpx.get(f"{watched.url}/console", timeout=60)
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'self'" in page.headers["content-security-policy"]
    assert set(FILES) >= {"index.html", "style.css", "main.js", "wheel.js"}
    for name in FILES:
        part = httpx.get(f"{watched.url}/console/{name}", timeout=60)
        assert part.status_code == 200
        foreign = part.text.replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in foreign and "https://" not in foreign, name
    for name in ("nothing.js", "%2e%2e%2fapp.py", "..%2Fapp.py"):
        assert httpx.get(f"{watched.url}/console/{name}", timeout=60).status_code == 404


def test_only_operators_are_told_what_happens(watched: Stack) -> None:
    for path in ("/console/feed", "/console/requests/1", "/metrics", "/metrics/scheduler"):
        for key, status in (("", 401), ("nobody", 401), ("acme", 403)):
            headers = {"authorization": f"Bearer {key}"} if key else {}
            assert httpx.get(f"{watched.url}{path}", headers=headers, timeout=60).status_code == status
    assert httpx.get(f"{watched.url}/console/requests/1", headers=OPERATOR, timeout=60).status_code == 404
    assert httpx.get(f"{watched.url}/metrics", headers=OPERATOR, timeout=60).status_code == 200


def everything(events: Events) -> bool:
    """Whether all that there is has been told: each stage and class, everybody's queue, steps, the ledger and how long
    things took."""
    live = [each for name, each in events if name == "live"]
    states = [each for name, each in events if name == "state"]
    moves = [move for each in live for move in each["moves"]]
    queues = live[-1]["queues"] if live else []
    return (
        len(live) > 5
        and "requests" not in live[-1]
        and len({step["serial"] for each in live for step in each["steps"]}) > 20
        and {"waiting", "prefill", "decode", "ended"} <= {move["stage"] for move in moves}
        and {move["class"] for move in moves} == {each["class"] for each in queues} == CLASSES
        and {each["tenant"] for each in queues} == {"acme", "beta"}
        and bool(states)
        and bool(states[-1]["ledger"])
        and any(each["of"] == "first_token" and each["p50"] for each in states[-1]["latency"])
    )


def test_the_feed_tells_every_step_in_order_and_no_more_than_ten_times_a_second(watched: Stack) -> None:
    with load(watched.endpoint, 24):
        events, seconds = told(watched, everything)
    live = [each for name, each in events if name == "live"]
    states = [each for name, each in events if name == "state"]
    assert len(live) <= 3 + 10 * seconds
    serials = [step["serial"] for each in live for step in each["steps"]]
    assert serials == sorted(set(serials)), "told twice, or out of order"
    moves = [move for each in live for move in each["moves"]]
    assert not {move["serial"] for move in moves} & set(serials), "one number for two things"
    for each in live:
        for step in each["steps"]:
            slots = step["cells"][::5]
            assert len(step["cells"]) == 5 * len(set(slots))
            assert all(0 <= slot < each["slots"]["count"] for slot in slots)
    assert "requests" in live[0]
    assert {each["service"] for each in states[-1]["services"]} == {
        "gateway", "admission", "scheduler", "executor", "detokenizer", "supervisor",
    }  # fmt: skip
    ledger = states[-1]["ledger"]
    assert ledger["accepted"] == sum(number for name, number in ledger.items() if name != "accepted")


def test_nothing_is_recorded_or_asked_once_nobody_watches(watched: Stack) -> None:
    def watchers() -> float:
        lines = httpx.get(f"{watched.url}/metrics/gateway", headers=OPERATOR, timeout=60).text.splitlines()
        return float(next(line for line in lines if line.startswith("noria_console_watchers")).split()[1])

    told(watched, bool)
    wait_until(lambda: watchers() == 0, 60, "the gateway has noticed that the console is gone")


def test_a_request_is_shown_with_its_stages_and_in_words(watched: Stack) -> None:
    headers = {"authorization": "Bearer acme", "x-request-id": "shown"}
    body = {"prompt": "hi", "max_tokens": 3, "ignore_eos": True}
    httpx.post(f"{watched.url}/v1/completions", json=body, headers=headers, timeout=60).raise_for_status()

    answer: dict[str, Any] = {}

    def ended() -> bool:
        """Whether its end is told, which the caller may know before the scheduler does."""
        answer.update(httpx.get(f"{watched.url}/console/requests/shown", headers=OPERATOR, timeout=60).json())
        return any("ended:" in line for line in answer.get("why", ()))

    wait_until(ended, 60, "its end is told")
    (stream,) = answer["streams"]
    assert [move["stage"] for move in stream["moves"]] == ["queued", "prefilling", "decoding", "ended"]
    assert stream["tenant"] == "acme"
    assert answer["why"][-1].endswith("ended: length, after 3 tokens")


def enter(page: Browser, url: str) -> None:
    """Open the console and give the key that it asks for."""
    page.open(url)
    page.wait("document.getElementById('key-dialog').open")
    page.run("document.getElementById('key').value = 'root'")
    page.run("document.querySelector('#key-form .primary').click()")
    page.wait("noria.store.live")
    assert all("401" in each for each in page.errors), page.errors  # the refusal of a feed without a key
    page.errors.clear()


def point_at_somebody(page: Browser) -> None:
    """Click on the wheel with the mouse until it stands on a request."""
    box = page.run(
        "(({ left, top, width, height }) => [left, top, width, height])(noria.wheel.canvas.getBoundingClientRect())"
    )
    left, top, width, height = box
    for place in range(40):
        page.click(left + width - 20 - place % 8 * 12, top + (place + 0.5) * (height - 52) / 40)
        if page.run("document.getElementById('drawer').open"):
            return
    raise AssertionError("nobody is on the wheel")


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium here; `apt install chromium` brings one")
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_a_browser_clicks_through_the_console_under_load(
    watched: Stack, width: int, dark: bool, tmp_path: Path
) -> None:
    assert BROWSER is not None
    with load(watched.endpoint, 24), Browser(BROWSER, width=width, height=900, dark=dark) as page:
        enter(page, f"{watched.url}/console")
        page.wait("noria.store.steps.length > 60")
        page.wait("document.querySelectorAll('#services tbody tr').length === 6")
        assert page.run("document.documentElement.dataset.theme") == ("dark" if dark else "light")
        assert page.run("document.documentElement.scrollWidth <= innerWidth"), "wider than the window"
        page.run("location.hash = 'requests'")
        page.wait("document.querySelectorAll('.row').length > 5")
        page.run("document.querySelectorAll('.row')[2].click()")
        page.wait("document.querySelector('.drawer pre.why')")
        page.press("Escape")
        page.wait("!document.getElementById('drawer').open")
        page.run("location.hash = 'playground'")
        page.run("document.getElementById('go').click()")
        page.wait("document.querySelectorAll('.token').length > 3")
        page.run("document.querySelector('.token').click()")
        page.wait("document.querySelectorAll('#alternatives .bars > *').length >= 3")
        page.run("location.hash = 'live'")
        point_at_somebody(page)
        page.wait("document.querySelector('.drawer pre.why')")
        page.press("Escape")
        page.run("document.activeElement.blur()")
        page.press("t", "t")
        assert page.run("document.documentElement.dataset.theme") == ("light" if dark else "dark")
        assert page.errors == []
        middle = page.run("(f => f.sort((a, b) => a - b)[f.length >> 1])([...noria.wheel.frames])")
        assert middle < 16, f"a frame takes {middle} ms to draw"
        page.screenshot(tmp_path / "console.png")


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium here; `apt install chromium` brings one")
def test_the_playground_can_send_every_parameter(watched: Stack) -> None:
    assert BROWSER is not None
    left = {"model", "stream", "stream_options", "user", "service_tier", "background", "response_format"}
    wanted = {each for each in GenerationBody.__struct_fields__ if not each.startswith(("guided", "structured"))} - left
    with Browser(BROWSER) as page:
        page.open(f"{watched.url}/console#playground")
        page.run(
            """document.querySelectorAll('#ask [name]').forEach((each) => {
            if (each.type === 'checkbox') each.checked = true; else if (each.tagName !== 'SELECT') each.value = '1'; });
            document.getElementById('p-logit_bias').value = '{"1": 2}'"""
        )
        for how, path, more in (
            ("chat", "/v1/chat/completions", {"messages", "logprobs", "top_logprobs"}),
            ("completion", "/v1/completions", {"prompt", "logprobs"}),
        ):
            page.run(f"document.getElementById('p-how').value = '{how}'")
            sent_to, body = page.run("noria.playground.body()")
            assert sent_to == path
            assert set(body) >= wanted | more
            assert body["stop_token_ids"] == [1]
            assert (body["include_stop_str_in_output"], body["skip_special_tokens"]) == (True, False)


SCROLL = """(async () => {
  const rows = document.getElementById('rows'); const work = []; const gaps = []; let before = 0;
  const frame = () => new Promise(requestAnimationFrame);
  for (let each = 0; each < 240; each += 1) {
    const at = await frame(); if (before) gaps.push(at - before); before = at;
    const begun = performance.now();
    rows.scrollTop = (each % 80) * 370; noria.history.draw(); rows.offsetHeight;
    work.push(performance.now() - begun);
  }
  const part = (found, share) => found.sort((a, b) => a - b)[Math.floor(found.length * share)];
  return { half: part(work, 0.5), most: part(work, 0.95), gap: part(gaps, 0.5), gaps: part(gaps, 0.95) };
})()"""


def lives(first: int) -> str:
    """A script that has the page hear of 5,000 requests: half of them end, one in a hundred gives way a hundred times."""
    move = {"choice": 0, "class": "batch", "tenant": "acme", "prompt_tokens": 9, "output_tokens": 0, "why": ""}
    return f"""(() => {{ const move = {json.dumps(move)}; const {{ store, history }} = noria;
        for (let each = {first}; each < {first + 5000}; each += 1) {{
          const tell = (stage, at, why = '') => store.move({{ ...move, request: each, stage, why, at_ms: each + at }});
          tell('waiting', 0); tell('prefill', 5);
          if (each % 100 === 0) for (let times = 0; times < 100; times += 1) {{ tell('waiting', 6, 'reset'); tell('prefill', 7); }}
          if (each % 2) tell('ended', 9, 'stop');
        }} history.draw(); }})()"""


def heap_bytes(page: Browser) -> int:
    """What the page's scripts hold, once what they do not is gone."""
    page.page("HeapProfiler.collectGarbage")
    metrics = page.page("Performance.getMetrics")["metrics"]
    return int(next(each["value"] for each in metrics if each["name"] == "JSHeapUsedSize"))


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium here; `apt install chromium` brings one")
def test_a_long_history_stays_smooth_under_load_and_its_memory_bounded(
    watched: Stack, capsys: pytest.CaptureFixture[str]
) -> None:
    assert BROWSER is not None
    with load(watched.endpoint, 24), Browser(BROWSER) as page:
        page.page("Performance.enable")
        enter(page, f"{watched.url}/console#requests")
        page.wait("noria.store.steps.length > 100")
        held = []
        for batch in range(5):
            page.run(lives(-5000 * (batch + 1)))  # numbers that the stack does not give
            assert page.run("noria.store.requests.size") == 1000
            held.append(heap_bytes(page))
        assert page.run("Math.max(...[...noria.store.requests.values()].map((each) => each.parts.length))") == 64
        assert page.run("document.querySelectorAll('.row').length") < 60, "rows that nobody sees"
        frames = page.run(SCROLL)
        page.wait("noria.store.steps.length === 900", 60)
        page.run("location.hash = 'live'")
        page.run("noria.wheel.frames.length = 0")
        page.wait("noria.wheel.frames.length > 100")
        wheel = page.run("(f => f.sort((a, b) => a - b)[Math.floor(f.length * 0.95)])([...noria.wheel.frames])")
        with capsys.disabled():
            print(
                f"\n1,000 requests, 16 slots under load: a frame of the list takes {frames['half']:.1f} ms, p95 {frames['most']:.1f} ms; "
                f"one follows another after {frames['gap']:.1f} ms, p95 {frames['gaps']:.1f} ms; of the wheel p95 {wheel:.1f} ms; "
                f"scripts hold {', '.join(f'{each / 1e6:.1f}' for each in held)} MB after each 5,000 requests"
            )
    # The processor is shared with the stack and the load, so that single frames wait for it.
    assert frames["half"] < 8, "there are 60 frames in a second"
    assert wheel < 16
    assert max(held[1:]) - held[0] < 4e6, f"{held} bytes"
