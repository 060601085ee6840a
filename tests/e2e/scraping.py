"""Parses scrapes of `/metrics`, and checks that their values agree within one scrape and from one to the next."""

import re
import time
from collections.abc import Iterator

import httpx

from noria.shared.telemetry.instruments import ADMISSION_METRICS, MetricKind

Series = tuple[str, frozenset[tuple[str, str]]]
Scrape = dict[Series, float]
SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)",?')
GROWING = {each.exposed for each in ADMISSION_METRICS if each.kind is not MetricKind.GAUGE}


def scraped(text: str) -> Scrape:
    """Parse a metrics page; asserts that no sample stands twice."""
    found: Scrape = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        match = SAMPLE.fullmatch(line)
        assert match is not None, line
        key = match[1], frozenset(LABEL.findall(match[2] or ""))
        assert key not in found, f"told twice: {line}"
        found[key] = float(match[3])
    return found


def complete_scrape(url: str, timeout_s: float = 60.0) -> Scrape:
    """Return a scrape to which every process contributed, which may take several tries on a busy machine."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = scraped(httpx.get(f"{url}/metrics", timeout=timeout_s).raise_for_status().text)
        if total(found, "noria_service_up") == 5 and total(found, "noria_service_starts_total"):
            return found
        assert time.monotonic() < deadline, "somebody does not tell its metrics"


def total(scrape: Scrape, name: str, **labels: str) -> float:
    """Return the sum of a metric's samples that have these labels."""
    return sum(
        number for (each, given), number in scrape.items() if each == name and labels.items() <= dict(given).items()
    )


def check_law(scrape: Scrape) -> bool:
    """Assert that metrics of the same streams agree, in total and for each class and tenant.

    False when admission has not answered, and nothing is told.
    """
    if ("noria_ledger_accepted_total", frozenset()) not in scrape:
        return False
    for term in ("accepted_total", "ended_total", "in_flight"):
        assert total(scrape, f"noria_ledger_{term}") == total(scrape, f"noria_streams_{term}"), term
    for labels in _accounts(scrape):
        accepted = total(scrape, "noria_streams_accepted_total", **labels)
        ended = total(scrape, "noria_streams_ended_total", **labels)
        in_flight = total(scrape, "noria_streams_in_flight", **labels)
        assert accepted == ended + in_flight, labels
        for (name, given), number in scrape.items():
            if name == "noria_streams_ended_total" and labels.items() <= dict(given).items():
                assert total(scrape, "noria_stream_time_seconds_count", **dict(given)) == number, given
        for name in ("noria_stream_prompt_tokens_count", "noria_stream_output_tokens_count"):
            assert total(scrape, name, **labels) == ended, (name, labels)
        begun = total(scrape, "noria_first_token_time_seconds_count", **labels)
        for name in ("noria_queue_time_seconds_count", "noria_prefill_time_seconds_count"):
            assert total(scrape, name, **labels) == begun, (name, labels)
        assert begun <= accepted
        assert begun - in_flight <= total(scrape, "noria_decode_time_seconds_count", **labels) <= min(begun, ended)
        generated = total(scrape, "noria_tokens_generated_total", **labels)
        assert begun + total(scrape, "noria_token_interval_seconds_count", **labels) == generated, labels
        assert total(scrape, "noria_stream_output_tokens_sum", **labels) <= generated, labels
    return True


def check_growth(earlier: Scrape, later: Scrape) -> None:
    """Assert that admission's counters only grow, even if processes died in between."""
    for (name, given), number in earlier.items():
        if name in GROWING or re.sub("_(bucket|sum|count)$", "", name) in GROWING:
            assert later.get((name, given), -1.0) >= number, (name, given)


def _accounts(scrape: Scrape) -> Iterator[dict[str, str]]:
    names = {given for name, given in scrape if name == "noria_streams_accepted_total"}
    return (dict(each) for each in names)
