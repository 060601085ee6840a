"""Renders metrics in Prometheus' text format 0.0.4, under Noria's names and under vLLM's where they mean the same."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from noria.shared.telemetry import instruments
from noria.shared.telemetry.instruments import Metric, MetricKind, label
from noria.shared.telemetry.metrics import MetricValue
from noria.shared.telemetry.spans import ATTRIBUTE_END, ATTRIBUTE_STATE

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class VllmAlias:
    """A metric name of vLLM, and the metrics whose sum it stands for.

    only: attribute values that are counted. by: an attribute to keep as a label, and vLLM's name for it.
    """

    name: str
    sources: tuple[Metric, ...]
    only: tuple[tuple[str, str], ...] = ()
    by: tuple[str, str] = ("", "")


# Names in vLLM's documentation from version 0.11 on, and older ones that dashboards still use.
ALIASES: Final = (
    VllmAlias("vllm:num_requests_running", (instruments.REQUESTS,), ((ATTRIBUTE_STATE, "running"),)),
    VllmAlias(
        "vllm:num_requests_waiting",
        (instruments.REQUESTS,),
        ((ATTRIBUTE_STATE, "waiting"), (ATTRIBUTE_STATE, "preempted")),
    ),
    VllmAlias("vllm:kv_cache_usage_perc", (instruments.CACHE_USAGE,)),
    VllmAlias("vllm:gpu_cache_usage_perc", (instruments.CACHE_USAGE,)),
    VllmAlias("vllm:prefix_cache_queries", (instruments.CACHE_PROMPT_TOKENS,)),
    VllmAlias("vllm:prefix_cache_hits", (instruments.CACHE_HIT_TOKENS,)),
    VllmAlias(
        "vllm:num_preemptions", (instruments.CACHE_RESETS, instruments.CACHE_SWAPS), (("noria.direction", "out"),)
    ),
    VllmAlias("vllm:prompt_tokens", (instruments.CACHE_PROMPT_TOKENS,)),
    VllmAlias("vllm:generation_tokens", (instruments.TOKENS_GENERATED,)),
    VllmAlias(
        "vllm:request_success",
        (instruments.STREAMS_ENDED,),
        ((ATTRIBUTE_END, "stop"), (ATTRIBUTE_END, "length"), (ATTRIBUTE_END, "cancelled")),
        (ATTRIBUTE_END, "finished_reason"),
    ),
    VllmAlias("vllm:time_to_first_token_seconds", (instruments.FIRST_TOKEN_TIME,)),
    VllmAlias("vllm:inter_token_latency_seconds", (instruments.TOKEN_INTERVAL,)),
    VllmAlias("vllm:time_per_output_token_seconds", (instruments.TOKEN_INTERVAL,)),
    VllmAlias("vllm:e2e_request_latency_seconds", (instruments.STREAM_TIME,)),
    VllmAlias("vllm:request_queue_time_seconds", (instruments.QUEUE_TIME,)),
    VllmAlias("vllm:request_prefill_time_seconds", (instruments.PREFILL_TIME,)),
    VllmAlias("vllm:request_decode_time_seconds", (instruments.DECODE_TIME,)),
    VllmAlias("vllm:request_prompt_tokens", (instruments.STREAM_PROMPT_TOKENS,)),
    VllmAlias("vllm:request_generation_tokens", (instruments.STREAM_OUTPUT_TOKENS,)),
    VllmAlias("vllm:iteration_tokens_total", (instruments.STEP_TOKENS,)),
)
_VLLM_FINISH_REASONS: Final = {"cancelled": "abort"}


def render_metrics(values: Sequence[MetricValue], model: str) -> str:
    """Render all metrics. model: the label of vLLM's metrics, which are left out when it is empty."""
    lines = list(_noria_lines(values))
    if model:
        for alias in ALIASES:
            lines += _vllm_lines(alias, values, model)
    return "\n".join(lines) + "\n"


def _noria_lines(values: Sequence[MetricValue]) -> Iterator[str]:
    ordered = sorted(values, key=lambda each: each.metric.name)
    for metric, same in groupby(ordered, key=lambda each: each.metric):
        yield from _header_lines(metric.exposed, metric.description, metric.kind)
        for value in same:
            labels = [(label(name), str(given)) for name, given in value.attributes]
            yield from _sample_lines(metric.exposed, metric.bounds, labels, value.number, value.counts)


def _vllm_lines(alias: VllmAlias, values: Sequence[MetricValue], model: str) -> Iterator[str]:
    kind = alias.sources[0].kind
    sums: dict[str, tuple[float, tuple[int, ...]]] = {}
    for value in values:
        if value.metric not in alias.sources or not _is_selected(alias, value):
            continue
        kept = str(dict(value.attributes).get(alias.by[0], ""))
        number, counts = sums.get(kept, (0.0, (0,) * len(value.counts)))
        sums[kept] = (number + value.number, tuple(map(sum, zip(counts, value.counts, strict=True))))
    if not sums and kind is not MetricKind.COUNTER:
        return
    name = alias.name + ("_total" if kind is MetricKind.COUNTER else "")
    yield from _header_lines(name, f"As {' and '.join(each.exposed for each in alias.sources)}.", kind)
    for kept, (number, counts) in (sums or {"": (0.0, ())}).items():
        labels = [("model_name", model), ("engine", "0")]
        if kept:
            labels.append((alias.by[1], _VLLM_FINISH_REASONS.get(kept, kept)))
        yield from _sample_lines(name, alias.sources[0].bounds, labels, number, counts)


def _is_selected(alias: VllmAlias, value: MetricValue) -> bool:
    """Whether a value has one of the selected attributes; True when its metric has no such attribute."""
    relevant = {name for name, _ in alias.only} & set(value.metric.attributes)
    return not relevant or any(each in alias.only for each in value.attributes)


def _header_lines(name: str, description: str, kind: MetricKind) -> Iterator[str]:
    yield f"# HELP {name} {description}".replace("\\", "\\\\").replace("\n", "\\n")
    yield f"# TYPE {name} {kind.value}"


def _sample_lines(
    name: str, bounds: Iterable[float], labels: list[tuple[str, str]], number: float, counts: tuple[int, ...]
) -> Iterator[str]:
    if not counts:
        yield f"{name}{_labels(labels)} {number!r}"
        return
    seen = 0
    for bound, count in zip((*map(repr, bounds), "+Inf"), counts, strict=True):
        seen += count
        yield f"{name}_bucket{_labels([*labels, ('le', bound)])} {seen}"
    yield f"{name}_sum{_labels(labels)} {number!r}"
    yield f"{name}_count{_labels(labels)} {seen}"


def _labels(labels: list[tuple[str, str]]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
