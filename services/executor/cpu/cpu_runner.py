"""The lane of a processor: one worker thread, whose batches are numpy arrays that the engine reads where they are."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from noria.proto.execution import Failure
from noria.services.executor.cpu.engine import Engine
from noria.services.executor.model.expert_reads import difference
from noria.services.executor.plan.batch import Batch
from noria.services.executor.runner.loaded_model import Loaded
from noria.services.executor.runner.model_runner import Broken, Computed, LoadFailed, Times
from noria.services.executor.runner.threaded_runner import ThreadedLane
from noria.shared.errors import UserError

_CLOSE_S: Final = 1.0


@dataclass(slots=True, eq=False)
class _Clock:
    ended_ns: int = 0


class CpuLane(ThreadedLane):
    """One worker thread; torch releases the interpreter while it computes. `wake` is called for each outcome."""

    def __init__(self, load: Callable[[], tuple[Engine, Loaded]], wake: Callable[[], None]) -> None:
        super().__init__(wake)
        self._load = load
        self._thread = threading.Thread(target=self._run, name="lane", daemon=True)
        self._thread.start()

    def close(self) -> bool:
        """Stop after the batch under way; False when that, or a load still going on, takes longer than a moment."""
        self._posted.put(None)
        self._thread.join(_CLOSE_S)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            engine, loaded = self._load()
        except UserError as error:
            self._report(LoadFailed(str(error)))
            return
        except Exception as error:  # the thread's edge: the process must hear of it and stop, not hang
            self._report(LoadFailed(f"{type(error).__name__}: {error}"))
            return
        self._report(loaded)
        broken_epoch: int | None = None
        clock = _Clock()
        while (posted := self._posted.get()) is not None:
            batch, posted_ns = posted
            if batch.epoch == broken_epoch and batch.number != 1:
                outcome: Computed | Broken = Broken(batch, Failure.ERROR, "an earlier step of the epoch failed")
            else:
                outcome = _compute(engine, batch, clock, posted_ns)
            broken_epoch = batch.epoch if isinstance(outcome, Broken) else None
            self._report(outcome)


def _compute(engine: Engine, batch: Batch, clock: _Clock, posted_ns: int) -> Computed | Broken:
    began_ns = time.monotonic_ns()
    idle_us = (began_ns - clock.ended_ns) // 1000 if clock.ended_ns else 0
    read = engine.experts_read
    try:
        drawn = engine.run(batch)
    except MemoryError as error:
        return Broken(batch, Failure.MEMORY, str(error))
    except Exception as error:  # the lane's edge: a bad step must not take the model with it
        # torch raises a plain RuntimeError when the allocator gives up.
        memory = isinstance(error, RuntimeError) and "memory" in str(error).lower()
        return Broken(batch, Failure.MEMORY if memory else Failure.ERROR, f"{type(error).__name__}: {error}"[:1000])
    clock.ended_ns = time.monotonic_ns()
    times = Times(posted_ns, began_ns, began_ns, clock.ended_ns, clock.ended_ns)
    experts = difference(engine.experts_read, read)
    return Computed(batch, drawn, (clock.ended_ns - began_ns) // 1000, idle_us, times, experts)
