"""Drives the product's scheduler and executor shell on a GPU, in one process."""

from fakes.shell_drive import ShellDrive

from noria.services.executor.cuda.cuda_runner import CudaModelRunner
from noria.services.executor.cuda.pipeline import Pipeline
from noria.services.executor.runner.loaded_model import LoadedModel
from noria.services.scheduler.core.interface.settings import CoreSettings


def driven(pipeline: Pipeline, loaded: LoadedModel, in_flight: int = 2) -> ShellDrive:
    """Return the product's scheduler and shell, running on this pipeline."""
    shape = loaded.shape
    return ShellDrive(
        lambda wake: CudaModelRunner(lambda tell: (pipeline, loaded), wake),
        CoreSettings(
            max_batch_tokens=shape.max_batch_tokens, max_requests_per_batch=shape.max_slots, steps_in_flight=in_flight
        ),
    )
