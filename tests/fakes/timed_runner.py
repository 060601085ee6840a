"""A model runner that computes nothing and takes as long as it is told to, for what happens around it."""

import threading
import time
from collections.abc import Callable

from fakes.sampling import drawn

from noria.services.executor.runner.loaded_model import LoadedModel
from noria.services.executor.runner.model_runner import StepComputed, StepTimestamps
from noria.services.executor.runner.threaded_runner import ThreadedModelRunner


class SimulatedRunner(ThreadedModelRunner):
    """compute_s may be set at any time. Every sampled id is 9."""

    def __init__(self, loaded: LoadedModel, compute_s: float, wake: Callable[[], None]) -> None:
        super().__init__(wake)
        self.compute_s = compute_s
        self._closed = threading.Event()
        self._outcomes.append(loaded)
        self._ended_ns = 0
        self._thread = threading.Thread(target=self._run, name="simulated model runner", daemon=True)
        self._thread.start()

    def close(self) -> bool:
        self._closed.set()
        self._posted.put(None)
        self._thread.join()
        return True

    def _run(self) -> None:
        self._wake()
        while (posted := self._posted.get()) is not None:
            batch, posted_ns = posted
            began_ns = time.monotonic_ns()
            self._closed.wait(self.compute_s)
            ended_ns = time.monotonic_ns()
            idle_us = (began_ns - self._ended_ns) // 1000 if self._ended_ns else 0
            self._ended_ns = ended_ns
            times = StepTimestamps(posted_ns, began_ns, began_ns, ended_ns, time.monotonic_ns())
            ids = (9,) * len(batch.sampled_rows)
            self._report(StepComputed(batch, drawn(ids), (ended_ns - began_ns) // 1000, idle_us, times))
