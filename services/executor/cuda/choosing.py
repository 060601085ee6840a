"""What computes a model's steps on a GPU, by `executor.kernels`."""

from noria.services.executor.config import ExecutorConfig
from noria.services.executor.cuda.loading import Made
from noria.services.executor.cuda.operations import DeviceOperations
from noria.services.executor.cuda.plain import PlainOperations
from noria.services.executor.cuda.pool import Pool
from noria.services.executor.groups import layer_groups
from noria.shared.errors import UserError


def choose_operations(config: ExecutorConfig, made: Made, pool: Pool) -> DeviceOperations:
    """The operations over a pool. Raises UserError for kernels that are of a processor."""
    if config.kernels not in ("auto", "reference"):
        raise UserError(
            f"executor.kernels {config.kernels} is of processors; with --device cuda choose auto or reference"
        )
    places = layer_groups(made.architecture.windows, pool.shape.max_model_tokens)
    return PlainOperations(made.architecture, pool, places, made.dtype, made.store)
