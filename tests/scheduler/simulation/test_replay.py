"""The replay of a production trace, on a few rows of its form: what the core finds in its cache, and a plain LRU finds."""

import json
from pathlib import Path
from types import ModuleType

import pytest
from fakes.scripts import script


def excerpt() -> list[dict[str, object]]:
    """Sessions as in the trace: every prompt begins with block 0, and goes on from an earlier one of its session."""
    rows: list[dict[str, object]] = []
    fresh = 1
    sessions: list[list[int]] = [[0] for _ in range(6)]
    for turn in range(40):
        blocks = sessions[turn * 5 % 6]
        blocks += range(fresh, fresh + 1 + turn % 3)
        fresh += 1 + turn % 3
        rows.append(
            {"input_length": len(blocks) * 512 - turn % 7, "output_length": 1 + turn % 9, "hash_ids": list(blocks)}
        )
    return rows


@pytest.fixture(scope="module")
def mooncake() -> ModuleType:
    return script("benchmarks/mooncake.py")


@pytest.mark.parametrize("cache_tokens", [1 << 13, 1 << 14, 1 << 16])
def test_the_core_finds_what_a_plain_lru_finds(mooncake: ModuleType, tmp_path: Path, cache_tokens: int) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join(map(json.dumps, excerpt())))
    rows = mooncake.fitting(mooncake.read(trace, 1000), cache_tokens)
    assert len(rows) > 10
    counters = mooncake.Replay(cache_tokens, 64, 1).run(rows)
    ours = counters.hit_tokens / counters.prompt_tokens
    plain = mooncake.lru_hit_rate(rows, 64, cache_tokens // 64)
    assert ours >= 0.95 * plain > 0.03
    assert counters.resets == counters.recomputed_tokens == 0


def test_several_at_a_time_share_as_well_in_a_cache_that_holds_them(mooncake: ModuleType, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join(map(json.dumps, excerpt())))
    rows = mooncake.read(trace, 1000)
    alone, together = (mooncake.Replay(1 << 18, 64, many).run(rows) for many in (1, 8))
    assert together.prompt_tokens == alone.prompt_tokens
    assert together.hit_tokens >= 0.95 * alone.hit_tokens
