"""Figures from observations made by hand."""

import random
import statistics

import msgspec
import pytest

from noria.cli.bench.request_timeline import BenchTimeline
from noria.cli.bench.statistics import LatencyObjective, parse_objective, percentile, summarize, summarize_samples
from noria.shared.errors import UserError


def seen(
    begun_s: float, arrivals: list[float], *, tokens: int | None = None, wanted: int = 3, error: str = ""
) -> BenchTimeline:
    return BenchTimeline(
        0,
        wanted,
        begun_s=begun_s,
        arrivals=arrivals,
        ended_s=arrivals[-1] if arrivals else begun_s + 1,
        prompt_tokens=10,
        counted_tokens=tokens,
        error=error,
    )


def test_a_percentile_lies_between_two_samples_in_proportion() -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.5
    assert percentile([5.0], 0.99) == 5.0
    assert percentile([0.0, 10.0], 0.9) == pytest.approx(9.0)
    with pytest.raises(ValueError, match="no samples"):
        percentile([], 0.5)


def test_percentiles_equal_those_of_the_standard_library() -> None:
    rng = random.Random(3)
    samples = sorted(rng.random() for _ in range(317))
    cuts = statistics.quantiles(samples, n=100, method="inclusive")
    for share in (1, 50, 90, 99):
        assert percentile(samples, share / 100) == pytest.approx(cuts[share - 1])


def test_a_distribution_is_in_milliseconds() -> None:
    found = summarize_samples([0.001, 0.002, 0.003])
    assert (found.count, found.mean, found.p50, found.max) == (3, pytest.approx(2.0), pytest.approx(2.0), 3.0)
    assert summarize_samples([]).count == 0


def test_tokens_of_one_piece_come_without_a_gap_and_the_sum_of_gaps_is_the_time() -> None:
    each = seen(0.0, [1.0, 1.5, 1.6], tokens=6)
    assert sorted(each.token_gaps_s()) == pytest.approx([0.0, 0.0, 0.0, 0.1, 0.5])
    assert sum(each.token_gaps_s()) == pytest.approx(0.6)
    assert seen(0.0, [1.0], tokens=1).token_gaps_s() == []


def test_without_usage_each_piece_is_a_token_and_the_summary_says_so() -> None:
    found = summarize([seen(0.0, [1.0, 1.5, 2.0]), seen(0.0, [1.0, 2.0, 3.0], tokens=3)])
    assert (found.output_tokens, found.uncounted) == (6, 1)


def test_rates_run_from_the_first_request_to_the_last_end() -> None:
    found = summarize([seen(10.0, [11.0, 12.0, 12.0], tokens=3), seen(11.0, [12.0, 13.0, 14.0], tokens=5, wanted=6)])
    assert found.duration_s == 4.0
    assert found.output_tokens_s == pytest.approx(2.0)
    assert found.total_tokens_s == pytest.approx(7.0)
    assert found.requests_s == pytest.approx(0.5)
    assert (found.completed, found.short) == (2, 1)
    assert found.ttft_ms.p50 == pytest.approx(1000)
    assert found.e2e_ms.max == pytest.approx(3000)


def test_failed_requests_count_as_failed_and_nowhere_else() -> None:
    found = summarize(
        [seen(0.0, [1.0], tokens=1, wanted=1), seen(0.0, [9.0], error="HTTP 503: full"), seen(0.0, [], error="gone")]
    )
    assert (found.requests, found.completed) == (3, 1)
    assert found.errors == {"HTTP 503: full": 1, "gone": 1}
    assert (found.output_tokens, found.ttft_ms.count) == (1, 1)


def test_nothing_observed_gives_zeros() -> None:
    found = summarize([])
    assert (found.requests, found.output_tokens_s, found.itl_ms.p99) == (0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("objective", "share"),
    [
        (LatencyObjective(), 0.5),
        (LatencyObjective(ttft_ms=1000), 0.5),
        (LatencyObjective(ttft_ms=999), 0.0),
        (LatencyObjective(itl_ms=250), 0.5),
        (LatencyObjective(itl_ms=249), 0.0),
        (LatencyObjective(e2e_ms=2000), 0.5),
        (LatencyObjective(ttft_ms=1000, e2e_ms=1999), 0.0),
    ],
)
def test_a_good_request_keeps_all_objectives_and_a_failed_one_none(objective: LatencyObjective, share: float) -> None:
    good = seen(0.0, [1.0, 2.0], tokens=5)
    found = summarize([good, seen(0.0, [], error="gone")], objective).goodput
    assert found is not None
    assert found.share == share
    assert found.requests_s == pytest.approx(share * 2 / 2.0)


def test_objectives_are_read_and_nonsense_is_refused() -> None:
    assert parse_objective("ttft:500, itl:50") == LatencyObjective(500, 50, None)
    assert parse_objective("e2e:0.5") == LatencyObjective(e2e_ms=0.5)
    for wrong in ("", "ttft", "ttft:", "ttft:-1", "tpot:5", "ttft:nan", "ttft:500;itl:3"):
        with pytest.raises(UserError, match="an objective is"):
            parse_objective(wrong)


def test_the_report_names_the_objective_as_its_readers_know_it() -> None:
    found = summarize([seen(0.0, [1.0], tokens=1)], LatencyObjective(ttft_ms=5)).goodput
    assert set(msgspec.to_builtins(found)) == {"promise", "share", "requests_s"}
