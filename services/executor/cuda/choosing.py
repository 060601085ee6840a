"""What computes a model's steps on a GPU, by `executor.kernels`."""

import importlib.util

from noria.services.executor.config import ExecutorConfig
from noria.services.executor.cuda.loading import Made
from noria.services.executor.cuda.operations import DeviceOperations
from noria.services.executor.cuda.plain import PlainOperations
from noria.services.executor.cuda.pool import Pool
from noria.services.executor.groups import layer_groups
from noria.shared.errors import UserError


def choose_operations(config: ExecutorConfig, made: Made, pool: Pool) -> DeviceOperations:
    """The operations over a pool: by Triton, or in plain PyTorch where that is configured or Triton is not installed.

    Raises UserError for kernels that are of a processor.
    """
    if config.kernels not in ("auto", "reference"):
        raise UserError(
            f"executor.kernels {config.kernels} is of processors; with --device cuda choose auto or reference"
        )
    places = layer_groups(made.architecture.windows, pool.shape.max_model_tokens)
    # On a processor Triton's kernels can be interpreted, for tests, but not be used.
    able = pool.data.device.type != "cpu" and importlib.util.find_spec("triton") is not None
    if config.kernels == "reference" or not able:
        return PlainOperations(made.architecture, pool, places, made.dtype, made.store)
    from noria.services.executor.cuda.triton_operations import TritonOperations

    shape = pool.shape
    rows = [pool.data[:, rank * shape.num_blocks :] for _, rank in places]
    return TritonOperations(made.architecture, shape, rows, places, made.dtype, made.store)
