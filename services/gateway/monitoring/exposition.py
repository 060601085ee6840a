"""Metrics as Prometheus reads them (text format 0.0.4): our own names, and those of vLLM for what means the same."""

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
class Alias:
    """A name of vLLM's, and the metrics whose values, added up, it stands for.

    only: attribute values that count. by: an attribute to keep as a label, under vLLM's name for it.
    """

    name: str
    sources: tuple[Metric, ...]
    only: tuple[tuple[str, str], ...] = ()
    by: tuple[str, str] = ("", "")


# The names of its documentation for version 0.11 and later; the older ones that dashboards still use stand beside them.
ALIASES: Final = (
    Alias("vllm:num_requests_running", (instruments.REQUESTS,), ((ATTRIBUTE_STATE, "running"),)),
    Alias(
        "vllm:num_requests_waiting",
        (instruments.REQUESTS,),
        ((ATTRIBUTE_STATE, "waiting"), (ATTRIBUTE_STATE, "preempted")),
    ),
    Alias("vllm:kv_cache_usage_perc", (instruments.CACHE_USAGE,)),
    Alias("vllm:gpu_cache_usage_perc", (instruments.CACHE_USAGE,)),
    Alias("vllm:prefix_cache_queries", (instruments.CACHE_PROMPT_TOKENS,)),
    Alias("vllm:prefix_cache_hits", (instruments.CACHE_HIT_TOKENS,)),
    Alias("vllm:num_preemptions", (instruments.CACHE_RESETS, instruments.CACHE_SWAPS), (("noria.direction", "out"),)),
    Alias("vllm:prompt_tokens", (instruments.CACHE_PROMPT_TOKENS,)),
    Alias("vllm:generation_tokens", (instruments.TOKENS_GENERATED,)),
    Alias(
        "vllm:request_success",
        (instruments.STREAMS_ENDED,),
        ((ATTRIBUTE_END, "stop"), (ATTRIBUTE_END, "length"), (ATTRIBUTE_END, "cancelled")),
        (ATTRIBUTE_END, "finished_reason"),
    ),
    Alias("vllm:time_to_first_token_seconds", (instruments.FIRST_TOKEN_TIME,)),
    Alias("vllm:inter_token_latency_seconds", (instruments.TOKEN_INTERVAL,)),
    Alias("vllm:time_per_output_token_seconds", (instruments.TOKEN_INTERVAL,)),
    Alias("vllm:e2e_request_latency_seconds", (instruments.STREAM_TIME,)),
    Alias("vllm:request_queue_time_seconds", (instruments.QUEUE_TIME,)),
    Alias("vllm:request_prefill_time_seconds", (instruments.PREFILL_TIME,)),
    Alias("vllm:request_decode_time_seconds", (instruments.DECODE_TIME,)),
    Alias("vllm:request_prompt_tokens", (instruments.STREAM_PROMPT_TOKENS,)),
    Alias("vllm:request_generation_tokens", (instruments.STREAM_OUTPUT_TOKENS,)),
    Alias("vllm:iteration_tokens_total", (instruments.STEP_TOKENS,)),
)
_REASONS: Final = {"cancelled": "abort"}


def exposition(values: Sequence[MetricValue], model: str) -> str:
    """The whole page; model: the name under which vLLM's metrics are told, none without one."""
    lines = list(_own(values))
    if model:
        for alias in ALIASES:
            lines += _alias(alias, values, model)
    return "\n".join(lines) + "\n"


def _own(values: Sequence[MetricValue]) -> Iterator[str]:
    ordered = sorted(values, key=lambda each: each.metric.name)
    for metric, same in groupby(ordered, key=lambda each: each.metric):
        yield from _head(metric.exposed, metric.description, metric.kind)
        for value in same:
            labels = [(label(name), str(given)) for name, given in value.attributes]
            yield from _samples(metric.exposed, metric.bounds, labels, value.number, value.counts)


def _alias(alias: Alias, values: Sequence[MetricValue], model: str) -> Iterator[str]:
    kind = alias.sources[0].kind
    sums: dict[str, tuple[float, tuple[int, ...]]] = {}
    for value in values:
        if value.metric not in alias.sources or not _counts(alias, value):
            continue
        kept = str(dict(value.attributes).get(alias.by[0], ""))
        number, counts = sums.get(kept, (0.0, (0,) * len(value.counts)))
        sums[kept] = (number + value.number, tuple(map(sum, zip(counts, value.counts, strict=True))))
    if not sums and kind is not MetricKind.COUNTER:
        return
    name = alias.name + ("_total" if kind is MetricKind.COUNTER else "")
    yield from _head(name, f"As {' and '.join(each.exposed for each in alias.sources)}.", kind)
    for kept, (number, counts) in (sums or {"": (0.0, ())}).items():
        labels = [("model_name", model), ("engine", "0")]
        if kept:
            labels.append((alias.by[1], _REASONS.get(kept, kept)))
        yield from _samples(name, alias.sources[0].bounds, labels, number, counts)


def _counts(alias: Alias, value: MetricValue) -> bool:
    """Whether a value has one of the wanted attributes, where its metric has such an attribute at all."""
    relevant = {name for name, _ in alias.only} & set(value.metric.attributes)
    return not relevant or any(each in alias.only for each in value.attributes)


def _head(name: str, description: str, kind: MetricKind) -> Iterator[str]:
    yield f"# HELP {name} {description}".replace("\\", "\\\\").replace("\n", "\\n")
    yield f"# TYPE {name} {kind.value}"


def _samples(
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
