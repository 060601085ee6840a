"""How often services were started, and whether they are ready."""

from collections.abc import Callable, Iterator, Mapping

from noria.proto.base import Service
from noria.shared.telemetry import instruments
from noria.shared.telemetry.metrics import MetricValue
from noria.shared.telemetry.spans import ATTRIBUTE_SERVICE
from noria.shared.telemetry.telemetry import MetricSource


class StackMetrics(MetricSource):
    """Metrics of the children. ready: which services there are, and whether they are ready."""

    def __init__(self, ready: Callable[[], Mapping[Service, bool]]) -> None:
        self._ready = ready
        self._starts: dict[Service, int] = {}

    def started(self, service: Service) -> None:
        """A service was started, for the first time or again."""
        self._starts[service] = self._starts.get(service, 0) + 1

    def values(self) -> Iterator[MetricValue]:
        """What they stand at."""
        for service, ready in self._ready().items():
            whose = ((ATTRIBUTE_SERVICE, service.value),)
            yield MetricValue(instruments.SERVICE_UP, int(ready), whose)
            yield MetricValue(instruments.SERVICE_STARTS, self._starts.get(service, 0), whose)
