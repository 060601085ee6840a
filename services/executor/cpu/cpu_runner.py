"""The model runner of a processor: one worker thread that computes batches of numpy arrays."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from noria.proto.execution import Failure
from noria.services.executor.cpu.engine import CpuEngine
from noria.services.executor.model.expert_reads import difference
from noria.services.executor.plan.batch import Batch
from noria.services.executor.runner.loaded_model import LoadedModel
from noria.services.executor.runner.model_runner import LoadFailed, StepBroken, StepComputed, StepTimestamps
from noria.services.executor.runner.threaded_runner import ThreadedModelRunner
from noria.shared.errors import UserError

_CLOSE_S: Final = 1.0


@dataclass(slots=True, eq=False)
class _LastEnd:
    ended_ns: int = 0


class CpuModelRunner(ThreadedModelRunner):
    """Computes in one worker thread, while torch releases the interpreter. `wake` is called for each event."""

    def __init__(self, load: Callable[[], tuple[CpuEngine, LoadedModel]], wake: Callable[[], None]) -> None:
        super().__init__(wake)
        self._load = load
        self._thread = threading.Thread(target=self._run, name="model runner", daemon=True)
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
        clock = _LastEnd()
        while (posted := self._posted.get()) is not None:
            batch, posted_ns = posted
            if batch.epoch == broken_epoch and batch.number != 1:
                outcome: StepComputed | StepBroken = StepBroken(
                    batch, Failure.ERROR, "an earlier step of the epoch failed"
                )
            else:
                outcome = _compute(engine, batch, clock, posted_ns)
            broken_epoch = batch.epoch if isinstance(outcome, StepBroken) else None
            self._report(outcome)


def _compute(engine: CpuEngine, batch: Batch, clock: _LastEnd, posted_ns: int) -> StepComputed | StepBroken:
    began_ns = time.monotonic_ns()
    idle_us = (began_ns - clock.ended_ns) // 1000 if clock.ended_ns else 0
    read = engine.experts_read
    try:
        drawn = engine.run(batch)
    except MemoryError as error:
        return StepBroken(batch, Failure.MEMORY, str(error))
    except Exception as error:  # the model runner's edge: a bad step must not take the model with it
        # torch raises a plain RuntimeError when the allocator gives up.
        memory = isinstance(error, RuntimeError) and "memory" in str(error).lower()
        return StepBroken(batch, Failure.MEMORY if memory else Failure.ERROR, f"{type(error).__name__}: {error}"[:1000])
    clock.ended_ns = time.monotonic_ns()
    times = StepTimestamps(posted_ns, began_ns, began_ns, clock.ended_ns, clock.ended_ns)
    experts = difference(engine.experts_read, read)
    return StepComputed(batch, drawn, (clock.ended_ns - began_ns) // 1000, idle_us, times, experts)
