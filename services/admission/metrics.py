"""What admission's accounts stand at, as metrics by tenant and class: copied at most once a second for the exporter."""

from collections.abc import Iterator
from typing import Final

from noria.services.admission.core.accounts import Traffic
from noria.services.admission.core.books import Books
from noria.shared import instruments
from noria.shared.metrics import Value
from noria.shared.telemetry import Telemetry

_INTERVAL_NS: Final = 1_000_000_000
_Attributes = tuple[tuple[str, str | int], ...]


class TrafficMetrics:
    """Publishes the books' accounts. Without telemetry nothing is copied."""

    def __init__(self, telemetry: Telemetry, books: Books) -> None:
        self._telemetry = telemetry
        self._books = books
        self._next_ns = 0
        telemetry.declare(instruments.ADMISSION_METRICS)

    def advance(self, now_ns: int) -> None:
        """Publish if a second has passed."""
        if self._telemetry.enabled and now_ns >= self._next_ns:
            self._next_ns = now_ns + _INTERVAL_NS
            self._publish()

    def close(self) -> None:
        """Publish the last values."""
        if self._telemetry.enabled:
            self._publish()

    def _publish(self) -> None:
        self._telemetry.publish(
            tuple(
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
