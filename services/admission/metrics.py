"""What admission's accounts stand at, as metrics by tenant and class: copied at most once a second for the exporter."""

from collections.abc import Iterator

from noria.services.admission.core.accounts import Traffic
from noria.services.admission.core.books import Books
from noria.shared import instruments
from noria.shared.metrics import Value
from noria.shared.telemetry import Publication, Telemetry

_Attributes = tuple[tuple[str, str | int], ...]


class TrafficMetrics(Publication):
    """Publishes the books' accounts."""

    def __init__(self, telemetry: Telemetry, books: Books) -> None:
        self._books = books
        super().__init__(telemetry, instruments.ADMISSION_METRICS)

    def _values(self) -> tuple[Value, ...]:
        return tuple(
            value
            for account, traffic in self._books.accounts.traffic.items()
            for value in _values(
                traffic,
                (
                    (instruments.ATTRIBUTE_TENANT, account.tenant),
                    (instruments.ATTRIBUTE_CLASS, account.traffic_class),
                ),
            )
        )


def _values(traffic: Traffic, whose: _Attributes) -> Iterator[Value]:
    used = traffic.used
    yield Value(instruments.STREAMS_ACCEPTED, traffic.accepted, whose)
    for end, count in traffic.ended.items():
        yield Value(instruments.STREAMS_ENDED, count, (*whose, (instruments.ATTRIBUTE_END, end.label)))
    for code, count in traffic.refused.items():
        yield Value(instruments.REQUESTS_REFUSED, count, (*whose, (instruments.ATTRIBUTE_CODE, code.value)))
    yield Value(instruments.USED_PROMPT_TOKENS, used.prompt_tokens, whose)
    yield Value(instruments.USED_CACHED_TOKENS, used.cached_tokens, whose)
    yield Value(instruments.USED_OUTPUT_TOKENS, used.output_tokens, whose)
    yield Value(instruments.USED_WASTED_TOKENS, used.wasted_tokens, whose)
    yield Value(instruments.USED_CACHE, used.block_us, whose)
    yield Value(instruments.RECLAIMS, traffic.reclaims, whose)
    yield Value(instruments.RECLAIM_DELAY, traffic.reclaim_us_sum, whose)
