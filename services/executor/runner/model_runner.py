"""What a lane is: it runs steps in order beside the actor, which prepares the next batch while a lane computes this one.

A lane holds at most `LANE_BATCHES` batches, the one being computed and the next: the two sets of arrays are the two
input buffers. It knows no sockets and no plans; after a failure it drops what is left of that epoch.
"""

from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from noria.proto.execution import Failure
from noria.services.executor.plan.batch import Batch
from noria.services.executor.plan.sampling_metadata import Drawn
from noria.services.executor.runner.loaded_model import Loaded
from noria.shared.telemetry.step_timeline import StepTime

LANE_BATCHES: Final = 2

Tell = Callable[[str, int, int], None]
"""Is told of loading's progress: what is loaded, how many parts are done, of how many."""


class Times(msgspec.Struct, frozen=True):
    """When a batch was posted, taken up, began and ended computing, and was told of: on the host's monotonic clock, in ns.

    way: how it was computed, where there is more than one.
    """

    posted_ns: int = 0
    launched_ns: int = 0
    began_ns: int = 0
    ended_ns: int = 0
    told_ns: int = 0
    way: str = ""

    def step_time(self, batch: Batch, prepare_ns: int) -> StepTime:
        """When a batch's step was what. prepare_ns: when the shell began to lay it out."""
        return StepTime(
            batch.epoch,
            batch.number,
            len(batch.token_ids),
            len(batch.slices.starts),
            prepare_ns,
            self.posted_ns,
            self.launched_ns,
            self.began_ns,
            self.ended_ns,
            self.told_ns,
            self.way,
        )


class Computed(msgspec.Struct, frozen=True):
    """A finished batch: what it sampled in the order of its products, and microseconds computing and waiting before.

    experts: how many experts' weights were read, over all layers, by it and those that sampled nothing before it.
    """

    batch: Batch
    drawn: Drawn | None
    compute_us: int
    idle_us: int
    times: Times = Times()
    experts: int = 0


class Broken(msgspec.Struct, frozen=True):
    """A batch that could not be computed."""

    batch: Batch
    failure: Failure
    detail: str


class Loading(msgspec.Struct, frozen=True):
    """A part of loading that takes long is under way: so many are done, of so many."""

    what: str
    done: int
    of: int


class LoadFailed(msgspec.Struct, frozen=True):
    """The model could not be loaded; `reason` is for a person."""

    reason: str


class Lost(msgspec.Struct, frozen=True):
    """The device failed, and with it everything on it: the process must end. `reason` is for a person."""

    reason: str


class NotRecorded(msgspec.Struct, frozen=True):
    """For the first time a step could not be recorded as a graph: it, and others like it, are computed without one."""

    shape: str
    reason: str


Outcome = Loading | Loaded | LoadFailed | Computed | Broken | Lost | NotRecorded


class Lane(Protocol):
    """Computes batches in the order posted."""

    @property
    def held(self) -> int:
        """Batches posted whose outcome has not been collected."""

    def post(self, batch: Batch) -> None:
        """Queue a batch; at most LANE_BATCHES may be held."""

    def collect(self) -> list[Outcome]:
        """Outcomes since the last call, in order; the model's comes first."""

    def close(self) -> bool:
        """Stop after the batch under way; False when that takes longer than a moment."""
