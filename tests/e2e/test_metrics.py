"""The scheduler's counts reach an OTLP collector."""

from pathlib import Path

import httpx
from e2e.harness import stack
from fakes.collector import Collector

from noria.shared import instruments

PAGE = 16


def test_cache_metrics_reach_the_collector_with_the_counts_of_the_run(tiny_model: Path) -> None:
    with Collector() as collector:
        arguments = ("--otlp-endpoint", collector.url, "--page-size", str(PAGE))
        with stack(str(tiny_model), *arguments) as running:
            body = {"model": "tiny", "prompt": "a" * (5 * PAGE), "max_tokens": 3, "ignore_eos": True}
            prompt_tokens = 0
            for _ in range(2):  # one after the other: the second finds what the first has computed
                reply = httpx.post(f"{running.url}/v1/completions", json=body, timeout=30).raise_for_status()
                prompt_tokens += reply.json()["usage"]["prompt_tokens"]
            refused = httpx.post(f"{running.url}/v1/completions", json={**body, "n": 1000}, timeout=30)
            assert refused.status_code == 400
            running.wait_idle()
            state = running.state()["scheduler"]
            running.stop()  # which exports the last counts
    assert collector.reporters == {"noria-scheduler", "noria-admission"}
    declared = (*instruments.SCHEDULER_METRICS, *instruments.ADMISSION_METRICS)
    # Shares are told by the policy that has them.
    assert set(collector.metrics) == {each.name for each in declared if not each.name.startswith("noria.share.")}
    whose = {"tenant": "default", "class": "standard"}
    assert collector.latest("noria.used.prompt_tokens", **whose) == prompt_tokens
    assert collector.latest("noria.used.cached_tokens", **whose) == 4 * PAGE
    assert collector.latest("noria.used.output_tokens", **whose) == 6
    assert collector.latest("noria.streams.accepted", **whose) == 2
    assert collector.latest("noria.streams.ended", end="length", **whose) == 2
    assert collector.latest("noria.requests.refused", code="invalid", **whose) == 1
    assert collector.latest("noria.cache.prompt_tokens") == prompt_tokens == 2 * 5 * PAGE
    assert collector.latest("noria.cache.hit_tokens") == 4 * PAGE, "the last token is computed, so its page is too"
    for name in ("recovered_tokens", "recomputed_tokens", "evictions", "resets", "swapped_blocks"):
        assert collector.latest(f"noria.cache.{name}") == 0
    for direction in ("out", "in"):
        assert collector.latest("noria.cache.swaps", direction=direction) == 0
    for name in ("waiting", "running"):
        assert collector.latest("noria.requests", state=name) == 0
    (blocks,) = state["blocks"]
    assert blocks["cached"] >= 5
    assert {name: collector.latest("noria.cache.blocks", group=0, state=name) for name in blocks} == blocks
