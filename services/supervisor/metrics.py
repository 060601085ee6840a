"""The supervisor's metrics: how often each service was started, and whether it is ready."""

from collections.abc import Callable, Iterator, Mapping

from noria.proto.base import Service
from noria.shared.telemetry import instruments
from noria.shared.telemetry.metrics import MetricValue
from noria.shared.telemetry.spans import ATTRIBUTE_SERVICE
from noria.shared.telemetry.telemetry import MetricSource


class StackMetrics(MetricSource):
    """Counts starts of each service and reports readiness. ready: returns for each service whether it is ready."""

    def __init__(self, ready: Callable[[], Mapping[Service, bool]]) -> None:
        self._ready = ready
        self._starts: dict[Service, int] = {}

    def started(self, service: Service) -> None:
        """Count a start of a service."""
        self._starts[service] = self._starts.get(service, 0) + 1

    def values(self) -> Iterator[MetricValue]:
        """The current values of all metrics."""
        for service, ready in self._ready().items():
            whose = ((ATTRIBUTE_SERVICE, service.value),)
            yield MetricValue(instruments.SERVICE_UP, int(ready), whose)
            yield MetricValue(instruments.SERVICE_STARTS, self._starts.get(service, 0), whose)
