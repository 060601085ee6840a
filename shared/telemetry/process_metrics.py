"""Metrics of every process: processor time, memory, start time, and counts of messages."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from noria.proto.base import Service
from noria.shared.telemetry import instruments
from noria.shared.telemetry.metrics import MetricValue
from noria.shared.telemetry.spans import ATTRIBUTE_SERVICE
from noria.shared.telemetry.telemetry import MetricSource

_STATUS: Final = Path("/proc/self/statm")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


class ProcessMetrics(MetricSource):
    """Processor time, memory, age and message counts of this process. mail: returns the mailbox's counts."""

    def __init__(self, service: Service, incarnation: int, mail: Callable[[], dict[str, int]]) -> None:
        self._incarnation = f"{incarnation:x}"
        self._attributes = ((ATTRIBUTE_SERVICE, service.value),)
        self._mail = mail
        self._began_unix_s = time.time()

    def answer(self, about: str) -> dict[str, object]:
        """Who this process is, in a form fit for JSON."""
        del about
        used = os.times()
        return {
            "incarnation": self._incarnation,
            "uptime_s": round(time.time() - self._began_unix_s, 1),
            "cpu_s": round(used.user + used.system, 3),
            "memory_bytes": resident_bytes(),
        }

    def values(self) -> Iterator[MetricValue]:
        """Yield the current values."""
        whose, mail = self._attributes, self._mail()
        used = os.times()
        yield MetricValue(instruments.PROCESS_CPU, used.user + used.system, whose)
        yield MetricValue(instruments.PROCESS_MEMORY, resident_bytes(), whose)
        yield MetricValue(instruments.PROCESS_START, round(self._began_unix_s, 3), whose)
        yield MetricValue(instruments.MAIL_DROPPED, mail["dropped"], whose)
        yield MetricValue(instruments.MAIL_MALFORMED, mail["malformed"], whose)
        yield MetricValue(instruments.MAIL_GAPS, mail["gaps"], whose)
        yield MetricValue(instruments.MAIL_OUTBOX, mail["outbox"], whose)


def resident_bytes() -> int:
    """Memory that the process has in use; 0 where the system does not tell."""
    try:
        return int(_STATUS.read_text().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return 0
