"""Spans and metrics of one process: recorded here, exported by OTLP where an endpoint is configured.

Metrics come from sources that are asked for their current values: once a second for the exporter, or when somebody
asks the process's mailbox; in the process's own thread both times.
"""

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, Final

from noria.proto.base import Service
from noria.shared.config.config import TelemetrySettings
from noria.shared.errors import UserError
from noria.shared.telemetry.export import HTTP, MetricExport, SpanExport
from noria.shared.telemetry.instruments import SPANS_LOST, Metric
from noria.shared.telemetry.metrics import MetricValue, encode_values, merge_values
from noria.shared.telemetry.spans import ATTRIBUTE_SERVICE
from noria.shared.telemetry.tracing import NO_SPAN, Attribute, Span, Tracer

__all__ = ["Attribute", "MetricSource", "Span", "Telemetry"]

_PUBLISHED_EVERY_NS: Final = 1_000_000_000


class MetricSource(ABC):
    """A component that has metrics."""

    @abstractmethod
    def values(self) -> Iterable[MetricValue]:
        """The current values of its metrics."""


class Telemetry:
    """Tracer and metrics of a process. Raises UserError when what is to send them is not installed."""

    def __init__(self, service: Service, incarnation: int, settings: TelemetrySettings) -> None:
        self.settings = settings
        self._sources: list[MetricSource] = []
        self._attributes = ((ATTRIBUTE_SERVICE, service.value),)
        self._next_ns = 0
        self._spans, self._metrics = _exports(settings, service, incarnation)
        take = self._spans.take if self._spans is not None else None
        self._tracer = Tracer(settings.sample_ratio, settings.spans_kept, take)

    @property
    def enabled(self) -> bool:
        """Whether spans are recorded at all."""
        return self._tracer.enabled

    def span(
        self,
        name: str,
        traceparent: str = "",
        attributes: Mapping[str, Attribute] | None = None,
        *,
        start_ago_s: float = 0.0,
        after: Span = NO_SPAN,
        server: bool = False,
        links: Iterable[str] = (),
    ) -> Span:
        """Begin a span under the given parent; `start_ago_s` backdates it, for what is known only afterwards.

        after: the span that it follows, at whose end it begins.
        """
        return self._tracer.span(
            name, traceparent, attributes, start_ago_s=start_ago_s, after=after, server=server, links=links
        )

    def add(self, source: MetricSource) -> None:
        """Add a source of metrics."""
        self._sources.append(source)

    def continue_since(self, metrics: Iterable[Metric], since_unix_ns: int) -> None:
        """Export these metrics with a start time before this process: they are kept over restarts."""
        if self._metrics is not None:
            self._metrics.since.update((each.name, since_unix_ns) for each in metrics)

    def values(self) -> list[MetricValue]:
        """The current values of all metrics of the process; to be called in the thread that counts."""
        lost = MetricValue(SPANS_LOST, self._spans.lost if self._spans is not None else 0, self._attributes)
        return merge_values((lost, *(value for source in self._sources for value in source.values())))

    def advance(self, now_ns: int) -> None:
        """Hand the values to the exporter, if there is one and a second has passed."""
        if self._metrics is not None and now_ns >= self._next_ns:
            self._next_ns = now_ns + _PUBLISHED_EVERY_NS
            self._metrics.publish(self.values())

    def answer_metrics(self, about: str) -> object:
        """The answer to an `Inspect` of topic `metrics`."""
        del about
        return encode_values(self.values())

    def answer_spans(self, about: str) -> list[dict[str, Any]]:
        """The answer to an `Inspect` of topic `spans`."""
        return self._tracer.spans_of(about)

    def close(self) -> None:
        """Export what is left, within two seconds or so; it is lost when nobody takes it in that time."""
        if self._metrics is not None:
            self._metrics.publish(self.values())
        # Side by side, so that a collector that is away costs its time once.
        exports = [each for each in (self._spans, self._metrics) if each is not None]
        for each in exports:
            each.close()
        for each in exports:
            each.join()


def _exports(
    settings: TelemetrySettings, service: Service, incarnation: int
) -> tuple[SpanExport | None, MetricExport | None]:
    endpoint = settings.otlp_endpoint.rstrip("/")
    if not endpoint:
        return None, None
    if settings.otlp_protocol != HTTP and importlib.util.find_spec("grpc") is None:
        raise UserError(
            "telemetry.otlp_protocol is grpc, which needs a package that is not installed: run pip install 'noria[grpc]', "
            f"or set it to {HTTP}"
        )
    from opentelemetry.sdk.resources import Resource

    resource = Resource.create(
        {
            "service.name": f"noria-{service.value}",
            "service.namespace": "noria",
            "service.instance.id": f"{incarnation:x}",
        }
    )
    protocol = settings.otlp_protocol
    spans = SpanExport(endpoint, protocol, resource)
    return spans, MetricExport(endpoint, protocol, resource) if settings.otlp_metrics else None
