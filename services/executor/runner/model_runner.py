"""The interface of a model runner: it loads the model and computes batches in order, beside the actor that prepares the next.

A model runner holds at most `BATCHES_IN_FLIGHT_MAX` batches, the one being computed and the next: the two sets of arrays are the two
input buffers. It knows no sockets and no plans; after a failure it drops what is left of that epoch.
"""

from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from noria.proto.execution import Failure
from noria.services.executor.plan.batch import Batch
from noria.services.executor.plan.sampling_metadata import SamplerOutput
from noria.services.executor.runner.loaded_model import LoadedModel
from noria.shared.telemetry.step_timeline import StepTiming

BATCHES_IN_FLIGHT_MAX: Final = 2

ReportProgress = Callable[[str, int, int], None]
"""Is told of loading's progress: what is loaded, how many parts are done, of how many."""


class StepTimestamps(msgspec.Struct, frozen=True):
    """When a batch was posted, taken up, begun, ended and reported: host monotonic clock, ns.

    way: how it was computed, where there is more than one.
    """

    posted_ns: int = 0
    launched_ns: int = 0
    began_ns: int = 0
    ended_ns: int = 0
    reported_ns: int = 0
    way: str = ""

    def step_time(self, batch: Batch, prepare_ns: int) -> StepTiming:
        """The batch's times as shown by `noria trace --steps`. prepare_ns: when the shell began to lay it out."""
        return StepTiming(
            batch.epoch,
            batch.number,
            len(batch.token_ids),
            len(batch.slices.starts),
            prepare_ns,
            self.posted_ns,
            self.launched_ns,
            self.began_ns,
            self.ended_ns,
            self.reported_ns,
            self.way,
        )


class StepComputed(msgspec.Struct, frozen=True):
    """A computed batch: what it sampled, in the order of its sampled rows, and microseconds of computing and of waiting before.

    experts: how many experts' weights were read, over all layers, by it and those that sampled nothing before it.
    """

    batch: Batch
    drawn: SamplerOutput | None
    compute_us: int
    idle_us: int
    times: StepTimestamps = StepTimestamps()
    experts: int = 0


class StepBroken(msgspec.Struct, frozen=True):
    """A batch that could not be computed."""

    batch: Batch
    failure: Failure
    detail: str


class LoadProgress(msgspec.Struct, frozen=True):
    """Progress of a long part of loading: `done` of `of`."""

    what: str
    done: int
    of: int


class LoadFailed(msgspec.Struct, frozen=True):
    """Loading the model failed; `reason` is shown to the user."""

    reason: str


class DeviceLost(msgspec.Struct, frozen=True):
    """The device failed with all that is on it, so the process must end; `reason` is shown to the user."""

    reason: str


class GraphNotRecorded(msgspec.Struct, frozen=True):
    """A step could not be recorded as a graph, for the first time; it and others like it are computed without one."""

    shape: str
    reason: str


RunnerEvent = LoadProgress | LoadedModel | LoadFailed | StepComputed | StepBroken | DeviceLost | GraphNotRecorded


class ModelRunner(Protocol):
    """Loads a model and computes batches in the order posted, in threads of its own."""

    @property
    def held(self) -> int:
        """Batches posted whose outcome has not been collected."""

    def post(self, batch: Batch) -> None:
        """Queue a batch; at most BATCHES_IN_FLIGHT_MAX may be held."""

    def collect(self) -> list[RunnerEvent]:
        """Events since the last call, in order; loading comes first."""

    def close(self) -> bool:
        """Stop after the batch under way; False when that takes longer than a moment."""
