"""Writes the Grafana dashboards in `dashboards/` from the panels declared here.

`python deploy/observability/generate_dashboards.py` rewrites them; a test compares them, and that each metric exists.
"""

import json
from pathlib import Path
from typing import Any, Final, NamedTuple

FOLDER: Final = Path(__file__).parent / "dashboards"
_WHOSE: Final = 'class=~"$class",tenant=~"$tenant"'


class Panel(NamedTuple):
    """One panel of a dashboard. targets: expression and legend. wide: of 24 columns. kind: timeseries, stat, bargauge or table."""

    title: str
    unit: str
    targets: tuple[tuple[str, str], ...]
    wide: int = 12
    kind: str = "timeseries"
    stacked: bool = False


def quantiles(metric: str, by: str = "", only: str = _WHOSE) -> tuple[tuple[str, str], ...]:
    """Return queries for the median and the 95th and 99th percentile of a histogram, with legends."""
    group = f"le, {by}" if by else "le"
    rate = f"sum by ({group}) (rate({metric}_bucket{{{only}}}[$__rate_interval]))"
    name = f"{{{{{by}}}}} " if by else ""
    return tuple((f"histogram_quantile({part}, {rate})", f"{name}p{round(part * 100)}") for part in (0.5, 0.95, 0.99))


def rate(metric: str, by: str, only: str = "") -> tuple[str, str]:
    """Return the query for a counter's rate by one label, with its legend."""
    selector = f"{{{only}}}" if only else ""
    return f"sum by ({by}) (rate({metric}{selector}[$__rate_interval]))", f"{{{{{by}}}}}"


DASHBOARDS: Final[dict[str, tuple[str, tuple[Panel, ...]]]] = {
    "overview": (
        "Noria: overview by class and tenant",
        (
            Panel("Running", "short", (('noria_requests{state="running"}', ""),), 4, "stat"),
            Panel("Waiting", "short", (('sum(noria_requests{state=~"waiting|preempted"})', ""),), 4, "stat"),
            Panel("Tokens generated / s", "short", (("sum(rate(noria_tokens_generated_total[$__rate_interval]))", ""),), 4, "stat"),
            Panel("First token, p95", "s", (quantiles("noria_first_token_time_seconds")[1],), 4, "stat"),
            Panel("Cache held", "percentunit", (("noria_cache_usage_ratio", ""),), 4, "stat"),
            Panel("In flight", "short", (("noria_ledger_in_flight", ""),), 4, "stat"),
            Panel("Tokens generated / s, by class", "short", (rate("noria_tokens_generated_total", "class", _WHOSE),), stacked=True),
            Panel("Tokens generated / s, by tenant", "short", (rate("noria_tokens_generated_total", "tenant", _WHOSE),), stacked=True),
            Panel("Streams in flight, by class", "short", ((f"sum by (class) (noria_streams_in_flight{{{_WHOSE}}})", "{{class}}"),), stacked=True),
            Panel("Streams in flight, by tenant", "short", ((f"sum by (tenant) (noria_streams_in_flight{{{_WHOSE}}})", "{{tenant}}"),), stacked=True),
            Panel("Ends / s, by reason", "short", (rate("noria_streams_ended_total", "end", _WHOSE),), stacked=True),
            Panel("Refusals / s, by code", "short", (rate("noria_requests_refused_total", "code"),), stacked=True),
            Panel("HTTP answers / s, by status", "short", (rate("http_server_request_duration_seconds_count", "http_response_status_code"),), stacked=True),
            Panel("Prompt tokens, those found in the cache, generated / s", "short", (
                ("sum(rate(noria_cache_prompt_tokens_total[$__rate_interval]))", "prompt"),
                ("sum(rate(noria_cache_hit_tokens_total[$__rate_interval]))", "found in the cache"),
                ("sum(rate(noria_tokens_generated_total[$__rate_interval]))", "generated"),
            )),
        ),
    ),
    "scheduler": (
        "Noria: scheduler and cache",
        (
            Panel("Requests, by state", "short", (("sum by (state) (noria_requests)", "{{state}}"),), stacked=True),
            Panel("Slots", "short", (("sum by (state) (noria_slots)", "{{state}}"),), stacked=True),
            Panel("Longest wait, and what is predicted for the next", "s", (
                ("noria_queue_oldest_seconds", "longest wait now"),
                ('noria_predicted_start_seconds{class=""}', "predicted"),
            )),
            Panel("Time of a step", "s", quantiles("noria_step_time_seconds", only="")),
            Panel("Query tokens of a step", "short", quantiles("noria_step_tokens", only="")),
            Panel("Tokens / s on the device", "short", (
                ("sum by (device) (rate(noria_device_tokens_total[$__rate_interval]))", "computed on {{device}}"),
                ("sum(rate(noria_tokens_sampled_total[$__rate_interval]))", "sampled and kept"),
                ("sum(rate(noria_tokens_wasted_total[$__rate_interval]))", "thrown away"),
            )),
            Panel("Use of the device", "percentunit", (
                ("sum by (device) (rate(noria_device_busy_seconds_total[$__rate_interval]))", "busy, {{device}}"),
                ("sum by (device) (rate(noria_device_idle_seconds_total[$__rate_interval]))", "idle between steps, {{device}}"),
                ("sum by (device) (rate(noria_device_prepare_seconds_total[$__rate_interval]))", "turning plans into arrays, {{device}}"),
            )),
            Panel("Blocks, by state", "short", (("sum by (state) (noria_cache_blocks)", "{{state}}"),), stacked=True),
            Panel("Cache held, and prompts found in it", "percentunit", (
                ("noria_cache_usage_ratio", "held"),
                ("sum(rate(noria_cache_hit_tokens_total[$__rate_interval])) / sum(rate(noria_cache_prompt_tokens_total[$__rate_interval]))", "prompt tokens found"),
            )),
            Panel("Preemptions / s", "short", (
                ("sum(rate(noria_cache_resets_total[$__rate_interval]))", "reset"),
                ("sum by (direction) (rate(noria_cache_swaps_total[$__rate_interval]))", "swapped {{direction}}"),
            )),
            Panel("Work done again / s", "short", (
                ("sum(rate(noria_cache_reset_tokens_total[$__rate_interval]))", "tokens given up"),
                ("sum(rate(noria_cache_recomputed_tokens_total[$__rate_interval]))", "tokens computed again"),
                ("sum(rate(noria_cache_recovered_tokens_total[$__rate_interval]))", "tokens found again"),
                ("sum(rate(noria_cache_evictions_total[$__rate_interval]))", "pages given up"),
            )),
            Panel("Service by class and tenant, tokens by price / s (policy fair)", "short", (
                (f"sum by (class, tenant) (deriv(noria_share_service{{{_WHOSE}}}[$__rate_interval]))", "{{class}} {{tenant}}"),
            )),
            # Without a GPU there are none of these: then a line at 0 says so.
            Panel("Steps on GPUs / s, by whether a graph was replayed", "short", (
                ("sum by (device, way) (rate(noria_device_steps_total[$__rate_interval])) or vector(0)", "{{device}} {{way}}"),
                ("sum by (device) (noria_device_unrecorded_total) or vector(0)", "shapes not recorded, {{device}}"),
            )),
            Panel("Experts read / s, on GPUs", "short", (
                ("sum by (device) (rate(noria_device_experts_total[$__rate_interval])) or vector(0)", "{{device}}"),
            )),
            Panel("From the end to the last block's return", "s", quantiles("noria_reclaim_time_seconds")),
        ),
    ),
    "latency": (
        "Noria: latency",
        (
            Panel("To the first token", "s", quantiles("noria_first_token_time_seconds", "class")),
            Panel("Between two tokens", "s", quantiles("noria_token_interval_seconds", "class")),
            Panel("In the queue", "s", quantiles("noria_queue_time_seconds", "class")),
            Panel("From the first step to the first token", "s", quantiles("noria_prefill_time_seconds", "class")),
            Panel("To the end", "s", quantiles("noria_stream_time_seconds", "class")),
            Panel("From the first token to the end", "s", quantiles("noria_decode_time_seconds", "class")),
            Panel("To the first token, p95 by tenant", "s", (quantiles("noria_first_token_time_seconds", "tenant")[1],)),
            Panel("First tokens within 2.5 s", "percentunit", (
                (f'sum by (class) (rate(noria_first_token_time_seconds_bucket{{{_WHOSE},le="2.5"}}[$__rate_interval])) / sum by (class) (rate(noria_first_token_time_seconds_count{{{_WHOSE}}}[$__rate_interval]))', "{{class}}"),
            )),
            Panel("Prompt tokens", "short", quantiles("noria_stream_prompt_tokens")),
            Panel("Tokens generated", "short", quantiles("noria_stream_output_tokens")),
            Panel("HTTP answers, p95 by route", "s", (
                ("histogram_quantile(0.95, sum by (le, http_route) (rate(http_server_request_duration_seconds_bucket[$__rate_interval])))", "{{http_route}}"),
            )),
        ),
    ),
    "recovery": (
        "Noria: recovery",
        (
            Panel("Services that are ready", "short", (("sum by (service) (noria_service_up)", "{{service}}"),), kind="bargauge"),
            Panel("Starts of services", "short", (("sum by (service) (noria_service_starts_total)", "{{service}}"),)),
            Panel("Age", "s", (("time() - noria_process_start_seconds", "{{service}}"),)),
            Panel("The ledger: accepted less ended less in flight, which is 0", "short", (
                ("sum(noria_ledger_accepted_total) - sum(noria_ledger_ended_total) - sum(noria_ledger_in_flight)", "difference"),
            )),
            Panel("Ends that are losses / s", "short", (rate("noria_streams_ended_total", "end", 'end=~"error|shed|deadline"'),)),
            Panel("Epochs and failed steps", "short", (("noria_epochs_total", "epochs opened"), ("noria_steps_failed_total", "steps failed"))),
            Panel("Mail of another life, unreadable, lost", "short", (
                ("sum by (service) (noria_mail_dropped_total)", "of another life, {{service}}"),
                ("sum by (service) (noria_mail_malformed_total)", "unreadable, {{service}}"),
                ("sum by (service) (noria_mail_gaps_total)", "lost, {{service}}"),
                ("sum by (service) (noria_spans_lost_total)", "spans lost, {{service}}"),
            )),
            Panel("Mail that waits for full sockets", "short", (("sum by (service) (noria_mail_outbox)", "{{service}}"),)),
            Panel("Processor", "percentunit", (rate("noria_process_cpu_seconds_total", "service"),)),
            Panel("Memory", "bytes", (("sum by (service) (noria_process_memory_bytes)", "{{service}}"),)),
            Panel("Clients, kept answers, prompts at the tokenizer", "short", (
                ("noria_clients", "clients"), ("noria_retained", "kept"), ("noria_tokenizing", "at the tokenizer"),
            )),
            Panel("Streams open for text", "short", (("noria_text_streams", "open"), ("noria_ledger_in_flight", "in flight"))),
        ),
    ),
}  # fmt: skip


def dashboard(name: str) -> dict[str, Any]:
    """Return one dashboard as Grafana reads it."""
    title, panels = DASHBOARDS[name]
    placed, x, y, high = [], 0, 0, 0
    for number, panel in enumerate(panels, 1):
        height = 4 if panel.kind == "stat" else 8
        if x + panel.wide > 24:
            x, y = 0, y + high
        high = height
        placed.append(_panel(panel, number, {"x": x, "y": y, "w": panel.wide, "h": height}))
        x += panel.wide
    return {
        "uid": f"noria-{name}",
        "title": title,
        "tags": ["noria"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "links": [{"type": "dashboards", "tags": ["noria"], "title": "Noria", "asDropdown": True, "keepTime": True}],
        "templating": {"list": [_variable("class"), _variable("tenant")]},
        "panels": placed,
    }


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    custom: dict[str, Any] = {}
    if panel.kind == "timeseries":
        custom = {"fillOpacity": 30 if panel.stacked else 8, "lineWidth": 1, "showPoints": "never"}
        custom["stacking"] = {"mode": "normal" if panel.stacked else "none"}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "gridPos": place,
        "datasource": {"type": "prometheus", "uid": "prometheus"},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": custom}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}} if panel.kind == "timeseries" else {},
        "targets": [
            {"refId": chr(ord("A") + place), "expr": expression, "legendFormat": legend, "range": True}
            for place, (expression, legend) in enumerate(panel.targets)
        ],
    }


def _variable(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": name,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "prometheus"},
        "query": f"label_values(noria_streams_accepted_total, {name})",
        "refresh": 2,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }


def text(name: str) -> str:
    """Return the file content of one dashboard."""
    return json.dumps(dashboard(name), indent=1) + "\n"


if __name__ == "__main__":
    for each in DASHBOARDS:
        (FOLDER / f"{each}.json").write_text(text(each))
