"""Metrics of one process: its thread hands over the latest values, an exporter's thread reads those and nothing else."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, assert_never

from noria.shared.instruments import Kind, Metric

if TYPE_CHECKING:  # the SDK is imported only where there is an endpoint
    from opentelemetry.metrics import CallbackOptions, Meter, Observation
    from opentelemetry.sdk.resources import Resource

_INTERVAL_MS: Final = 5_000


@dataclass(frozen=True, slots=True)
class Value:
    """What a metric stands at, for one set of attributes."""

    metric: Metric
    number: int
    attributes: tuple[tuple[str, str | int], ...] = ()


class MetricExporter:
    """Sends the latest values by OTLP every five seconds, from a thread of its own."""

    def __init__(self, url: str, timeout_s: float, resource: "Resource", metrics: Sequence[Metric]) -> None:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

        self._latest: tuple[Value, ...] = ()
        self._timeout_ms = timeout_s * 1e3
        reader = PeriodicExportingMetricReader(OTLPMetricExporter(endpoint=url, timeout=timeout_s), _INTERVAL_MS)
        self._provider = MeterProvider([reader], resource, shutdown_on_exit=False)
        meter = self._provider.get_meter("noria")
        for metric in metrics:
            self._observe(meter, metric)

    def publish(self, values: tuple[Value, ...]) -> None:
        """Replace what the exporter reads. One assignment: the exporter finds the old values or the new."""
        self._latest = values

    def close(self) -> None:
        """Export the latest values once more; what nobody takes within the timeout is lost."""
        self._provider.shutdown(timeout_millis=self._timeout_ms)

    def _observe(self, meter: "Meter", metric: Metric) -> None:
        callbacks = [self._reader(metric)]
        match metric.kind:
            case Kind.COUNTER:
                meter.create_observable_counter(metric.name, callbacks, metric.unit, metric.description)
            case Kind.GAUGE:
                meter.create_observable_gauge(metric.name, callbacks, metric.unit, metric.description)
            case _:
                assert_never(metric.kind)

    def _reader(self, metric: Metric) -> "Callable[[CallbackOptions], Iterable[Observation]]":
        from opentelemetry.metrics import Observation

        def read(options: "CallbackOptions") -> "Iterable[Observation]":
            del options
            return [Observation(each.number, dict(each.attributes)) for each in self._latest if each.metric is metric]

        return read
