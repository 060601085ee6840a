"""Values as Prometheus reads them, under our names and vLLM's."""

from noria.services.gateway.monitoring.exposition import render_metrics
from noria.shared.telemetry import instruments
from noria.shared.telemetry.metrics import Histogram, MetricValue


def whose(tenant: str) -> tuple[tuple[str, str], ...]:
    return (("noria.class", "batch"), ("noria.tenant", tenant))


def test_buckets_are_cumulative_and_end_with_the_count() -> None:
    histogram = Histogram(instruments.FIRST_TOKEN_TIME)
    for number in (0.001, 0.02, 999.0):
        histogram.observe(number)
    page = render_metrics([histogram.value(whose("acme"))], "")
    assert "# TYPE noria_first_token_time_seconds histogram\n" in page
    labels = 'class="batch",tenant="acme"'
    for line in (
        f'noria_first_token_time_seconds_bucket{{{labels},le="0.005"}} 1',
        f'noria_first_token_time_seconds_bucket{{{labels},le="0.025"}} 2',
        f'noria_first_token_time_seconds_bucket{{{labels},le="300.0"}} 2',
        f'noria_first_token_time_seconds_bucket{{{labels},le="+Inf"}} 3',
        f"noria_first_token_time_seconds_count{{{labels}}} 3",
    ):
        assert line in page.splitlines()


def test_label_values_are_escaped_and_each_metric_is_described_once() -> None:
    values = [
        MetricValue(instruments.STREAMS_ACCEPTED, 1, whose('a"b\\c\nd')),
        MetricValue(instruments.STREAMS_IN_FLIGHT, 2, whose("e")),
        MetricValue(instruments.STREAMS_ACCEPTED, 2, whose("e")),
    ]
    page = render_metrics(values, "")
    assert 'tenant="a\\"b\\\\c\\nd"' in page
    assert page.count("# HELP noria_streams_accepted_total ") == 1
    lines = [line.partition("{")[0] for line in page.splitlines() if not line.startswith("#")]
    assert lines == ["noria_streams_accepted_total"] * 2 + ["noria_streams_in_flight"], (
        "what belongs together is together"
    )


def test_vllms_names_are_sums_over_classes_and_tenants_with_its_labels() -> None:
    ended = [
        MetricValue(instruments.STREAMS_ENDED, 2, (*whose("a"), ("noria.end", "stop"))),
        MetricValue(instruments.STREAMS_ENDED, 3, (*whose("b"), ("noria.end", "stop"))),
        MetricValue(instruments.STREAMS_ENDED, 4, (*whose("b"), ("noria.end", "cancelled"))),
        MetricValue(instruments.STREAMS_ENDED, 9, (*whose("b"), ("noria.end", "shed"))),
        MetricValue(instruments.CACHE_RESETS, 5),
        MetricValue(instruments.CACHE_SWAPS, 6, (("noria.direction", "out"),)),
        MetricValue(instruments.CACHE_SWAPS, 7, (("noria.direction", "in"),)),
    ]
    lines = render_metrics(ended, "tiny").splitlines()
    assert 'vllm:request_success_total{model_name="tiny",engine="0",finished_reason="stop"} 5.0' in lines
    assert 'vllm:request_success_total{model_name="tiny",engine="0",finished_reason="abort"} 4.0' in lines
    assert not [line for line in lines if '"shed"' in line and line.startswith("vllm:")]
    assert 'vllm:num_preemptions_total{model_name="tiny",engine="0"} 11.0' in lines
    assert not [line for line in render_metrics(ended, "").splitlines() if line.startswith("vllm:")]


def test_vllms_counters_begin_at_nothing_and_what_was_never_measured_is_not_told() -> None:
    page = render_metrics([], "tiny")
    assert 'vllm:generation_tokens_total{model_name="tiny",engine="0"} 0.0' in page.splitlines()
    assert "vllm:time_to_first_token_seconds" not in page
    assert "vllm:num_requests_running" not in page
