"""When a step was what, from what its shell and its lane noted."""

from noria.services.executor.batch import Batch
from noria.services.executor.lane import Times
from noria.shared.telemetry.step_timeline import StepTiming


def step_time(batch: Batch, prepare_ns: int, times: Times) -> StepTiming:
    """prepare_ns: when the shell began to lay it out."""
    return StepTiming(
        batch.epoch,
        batch.number,
        len(batch.token_ids),
        len(batch.slices.starts),
        prepare_ns,
        times.posted_ns,
        times.launched_ns,
        times.began_ns,
        times.ended_ns,
        times.told_ns,
        times.way,
    )
