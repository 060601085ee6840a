"""What admission's books stand at, as metrics by class and tenant, and how long everything took.

All that is told at one time belongs to one moment: nothing happens to the ledger between two of the values.
"""

from collections.abc import Iterator
from typing import Final

from noria.services.admission.core.accounts import Account, Traffic
from noria.services.admission.core.books import Books
from noria.services.admission.core.timings import Timing, Timings
from noria.shared import instruments
from noria.shared.instruments import Metric
from noria.shared.metrics import Attributes, Histograms, Labels, Value
from noria.shared.spans import ATTRIBUTE_CLASS, ATTRIBUTE_CODE, ATTRIBUTE_END, ATTRIBUTE_TENANT
from noria.shared.telemetry import Publication

_TIMED: Final[dict[Timing, Metric]] = {
    Timing.QUEUE: instruments.QUEUE_TIME,
    Timing.PREFILL: instruments.PREFILL_TIME,
    Timing.FIRST_TOKEN: instruments.FIRST_TOKEN_TIME,
    Timing.INTERVAL: instruments.TOKEN_INTERVAL,
    Timing.DECODE: instruments.DECODE_TIME,
    Timing.RECLAIM: instruments.RECLAIM_TIME,
}


class TrafficMetrics(Publication):
    """Metrics of the books. tenants_max: how many tenants have figures of their own."""

    def __init__(self, books: Books, tenants_max: int) -> None:
        self._books = books
        self._labels = Labels(tenants_max)
        self._names: dict[Account, tuple[str, str]] = {}
        self._timed = {timing: Histograms(metric) for timing, metric in _TIMED.items()}
        self._ended = Histograms(instruments.STREAM_TIME)
        self._prompts = Histograms(instruments.STREAM_PROMPT_TOKENS)
        self._outputs = Histograms(instruments.STREAM_OUTPUT_TOKENS)
        self._generated: dict[tuple[str, str], int] = {}

    def count(self, timings: Timings) -> None:
        """Count what happened in a turn."""
        for account, timing, took_ns, times in timings.timed:
            self._timed[timing].observe(took_ns / 1e9, self._named(account), times)
        for account, end, took_ns, prompt_tokens, output_tokens in timings.finished:
            whose = self._named(account)
            self._ended.observe(took_ns / 1e9, (*whose, end.label))
            self._prompts.observe(prompt_tokens, whose)
            self._outputs.observe(output_tokens, whose)
        for account, tokens in timings.generated.items():
            whose = self._named(account)
            self._generated[whose] = self._generated.get(whose, 0) + tokens

    def values(self) -> Iterator[Value]:
        """What they stand at."""
        yield from self._law()
        for account, traffic in self._books.accounts.traffic.items():
            yield from _traffic(traffic, _attributes(self._named(account)))
        for whose, number in self._in_flight().items():
            yield Value(instruments.STREAMS_IN_FLIGHT, number, _attributes(whose))
        for whose, tokens in self._generated.items():
            yield Value(instruments.TOKENS_GENERATED, tokens, _attributes(whose))
        for histograms in (*self._timed.values(), self._ended, self._prompts, self._outputs):
            yield from histograms.values()
        ledger = self._books.ledger
        yield Value(instruments.CLIENTS, len(self._books.delivery.clients))
        yield Value(instruments.RETAINED, len(ledger.requests) - len(ledger.live) - len(ledger.tokenizing))
        yield Value(instruments.TOKENIZING, len(ledger.tokenizing))

    def _law(self) -> Iterator[Value]:
        totals = self._books.totals
        yield Value(instruments.LEDGER_ACCEPTED, totals.accepted)
        for end, count in totals.ended.items():
            yield Value(instruments.LEDGER_ENDED, count, ((ATTRIBUTE_END, end.label),))
        yield Value(instruments.LEDGER_IN_FLIGHT, self._books.ledger.streams)

    def _in_flight(self) -> dict[tuple[str, str], int]:
        counts: dict[tuple[str, str], int] = {self._named(each): 0 for each in self._books.accounts.traffic}
        for request in self._books.ledger.live.values():
            whose = self._named(self._books.accounts.of(request))
            counts[whose] = counts.get(whose, 0) + request.unfinished
        return counts

    def _named(self, account: Account) -> tuple[str, str]:
        """Class and tenant as metrics call them."""
        named = self._names.get(account)
        if named is None:
            named = self._names[account] = (account.traffic_class, self._labels.of(account.tenant))
        return named


def _attributes(whose: tuple[str, str]) -> Attributes:
    return ((ATTRIBUTE_CLASS, whose[0]), (ATTRIBUTE_TENANT, whose[1]))


def _traffic(traffic: Traffic, whose: Attributes) -> Iterator[Value]:
    used = traffic.used
    yield Value(instruments.STREAMS_ACCEPTED, traffic.accepted, whose)
    for end, count in traffic.ended.items():
        yield Value(instruments.STREAMS_ENDED, count, (*whose, (ATTRIBUTE_END, end.label)))
    for code, count in traffic.refused.items():
        yield Value(instruments.REQUESTS_REFUSED, count, (*whose, (ATTRIBUTE_CODE, code.value)))
    yield Value(instruments.USED_PROMPT_TOKENS, used.prompt_tokens, whose)
    yield Value(instruments.USED_CACHED_TOKENS, used.cached_tokens, whose)
    yield Value(instruments.USED_OUTPUT_TOKENS, used.output_tokens, whose)
    yield Value(instruments.USED_WASTED_TOKENS, used.wasted_tokens, whose)
    yield Value(instruments.USED_CACHE, used.block_us, whose)
