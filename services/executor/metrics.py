"""Metrics of the device: steps and tokens computed, busy and idle time, and what its memory is used for."""

from collections import Counter
from collections.abc import Iterator

from noria.services.executor.runner.loaded_model import LoadedModel
from noria.services.executor.runner.model_runner import StepComputed
from noria.shared.telemetry import instruments
from noria.shared.telemetry.metrics import MetricValue
from noria.shared.telemetry.spans import ATTRIBUTE_DEVICE, ATTRIBUTE_PURPOSE, ATTRIBUTE_WAY
from noria.shared.telemetry.telemetry import MetricSource


class DeviceMetrics(MetricSource):
    """Counts what the device computed; has no values before the model is loaded."""

    def __init__(self) -> None:
        self._loaded: LoadedModel | None = None
        self._tokens = 0
        self._busy_us = 0
        self._idle_us = 0
        self._prepare_us = 0
        self._ways: Counter[str] = Counter()
        self._unrecorded = 0
        self._experts = 0

    def loaded(self, loaded: LoadedModel) -> None:
        """Take what the loaded model says of its device and memory."""
        self._loaded = loaded

    def not_recorded(self) -> None:
        """Count a step that could not be recorded as a graph."""
        self._unrecorded += 1

    def step(self, tokens: int, computed: StepComputed, prepare_us: int) -> None:
        """Count a computed step. prepare_us: microseconds that the shell took to lay it out."""
        self._ways[computed.times.way] += 1
        self._tokens += tokens
        self._busy_us += computed.compute_us
        self._idle_us += computed.idle_us
        self._experts += computed.experts
        self._prepare_us += prepare_us

    def values(self) -> Iterator[MetricValue]:
        """The current value of every metric."""
        if self._loaded is None:
            return
        device = ((ATTRIBUTE_DEVICE, self._loaded.geometry.device),)
        yield MetricValue(instruments.DEVICE_TOKENS, self._tokens, device)
        yield MetricValue(instruments.DEVICE_BUSY, self._busy_us / 1e6, device)
        yield MetricValue(instruments.DEVICE_IDLE, self._idle_us / 1e6, device)
        yield MetricValue(instruments.DEVICE_PREPARE, self._prepare_us / 1e6, device)
        for way, count in self._ways.items():
            if way:
                yield MetricValue(instruments.DEVICE_STEPS, count, (*device, (ATTRIBUTE_WAY, way)))
        if self._experts:
            yield MetricValue(instruments.DEVICE_EXPERTS, self._experts, device)
        if self._unrecorded:
            yield MetricValue(instruments.DEVICE_UNRECORDED, self._unrecorded, device)
        for share in self._loaded.memory.shares:
            yield MetricValue(instruments.DEVICE_MEMORY, share.bytes, (*device, (ATTRIBUTE_PURPOSE, share.name)))
