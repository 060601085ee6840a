"""The model runner of a GPU: one thread queues steps, another waits for them.

The first never waits for the device, so step N + 1 is queued while N computes; the second sleeps until what N sampled has
arrived on the host. They know no sockets and no plans.
"""

import queue
import threading
import time
from collections.abc import Callable
from typing import Final

from noria.proto.execution import Failure
from noria.services.executor.cuda.device.streams import DeviceLostError
from noria.services.executor.cuda.pipeline import FinishedFlight, Pipeline, StepFlight
from noria.services.executor.plan.batch import Batch
from noria.services.executor.runner.loaded_model import LoadedModel
from noria.services.executor.runner.model_runner import (
    DeviceLost,
    GraphNotRecorded,
    LoadFailed,
    LoadProgress,
    ReportProgress,
    StepBroken,
    StepComputed,
    StepTimestamps,
)
from noria.services.executor.runner.threaded_runner import ThreadedModelRunner
from noria.shared.errors import UserError

_CLOSE_S: Final = 1.0
_Queued = tuple[StepFlight, int] | StepBroken | None


class CudaModelRunner(ThreadedModelRunner):
    """Computes on a GPU. load: loads the model, and is given a function for its progress. `wake` is called for each event."""

    def __init__(
        self, load: Callable[[ReportProgress], tuple[Pipeline, LoadedModel]], wake: Callable[[], None]
    ) -> None:
        super().__init__(wake)
        self._load = load
        self._flying: queue.SimpleQueue[_Queued] = queue.SimpleQueue()
        self._lost = False
        self._launcher = threading.Thread(target=self._launch_all, name="model runner", daemon=True)
        self._launcher.start()

    def close(self) -> bool:
        """Stop after the batches under way; False when that, or a load still going on, takes longer than a moment."""
        self._posted.put(None)
        self._launcher.join(_CLOSE_S)
        return not self._launcher.is_alive()

    def _launch_all(self) -> None:
        try:
            pipeline, loaded = self._load(lambda what, done, of: self._report(LoadProgress(what, done, of)))
        except UserError as error:
            self._report(LoadFailed(str(error)))
            return
        except Exception as error:  # the thread's edge: the process must hear of it and stop, not hang
            self._report(LoadFailed(f"{type(error).__name__}: {error}"))
            return
        pipeline.graph_runner.on_refused = lambda shape, reason: self._report(GraphNotRecorded(shape, reason))
        self._report(loaded)
        finisher = threading.Thread(target=self._finish_all, args=(pipeline,), name="model runner results", daemon=True)
        finisher.start()
        broken_epoch: int | None = None
        while (posted := self._posted.get()) is not None and not self._lost:
            batch, posted_ns = posted
            if batch.epoch == broken_epoch and batch.number != 1:
                queued: _Queued = StepBroken(batch, Failure.ERROR, "an earlier step of the epoch failed")
            else:
                queued = self._launched(pipeline, batch, posted_ns)
            broken_epoch = batch.epoch if isinstance(queued, StepBroken) else None
            self._flying.put(queued)
        self._flying.put(None)
        finisher.join()

    def _launched(self, pipeline: Pipeline, batch: Batch, posted_ns: int) -> tuple[StepFlight, int] | StepBroken:
        try:
            try:
                return pipeline.launch(batch), posted_ns
            except MemoryError as error:
                pipeline.make_room()
                return StepBroken(batch, Failure.MEMORY, str(error))
        except DeviceLostError as error:
            self._lose(str(error))
            return StepBroken(batch, Failure.ERROR, str(error))
        except Exception as error:  # the model runner's edge: a bad step must not take the model with it
            return StepBroken(batch, Failure.ERROR, f"{type(error).__name__}: {error}"[:1000])

    def _finish_all(self, pipeline: Pipeline) -> None:
        while (queued := self._flying.get()) is not None:
            if isinstance(queued, StepBroken):
                self._report(queued)
                continue
            flight, posted_ns = queued
            try:
                finished = pipeline.finish(flight)
            except Exception as error:  # nothing on the device can be relied on any more
                self._lose(f"{type(error).__name__}: {error}"[:1000])
                return
            self._report(_computed(flight.batch, finished, posted_ns, flight.launched_ns))

    def _lose(self, reason: str) -> None:
        self._lost = True
        self._report(DeviceLost(reason))


def _computed(batch: Batch, finished: FinishedFlight, posted_ns: int, launched_ns: int) -> StepComputed:
    way = finished.way.value if finished.way is not None else ""
    times = StepTimestamps(posted_ns, launched_ns, finished.began_ns, finished.ended_ns, time.monotonic_ns(), way)
    return StepComputed(batch, finished.drawn, finished.compute_us, finished.idle_us, times, finished.experts)
