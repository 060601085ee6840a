"""Makes the lane that is configured. What a lane needs is imported when it is made: CUDA costs a process much."""

from collections.abc import Callable

from noria.services.executor.config import ExecutorConfig
from noria.services.executor.lane import Lane


def make_lane(config: ExecutorConfig, wake: Callable[[], None]) -> Lane:
    """A lane that loads its model and computes; `wake` is called when it has news."""
    if config.device == "cpu":
        from noria.services.executor.cpu_lane import CpuLane
        from noria.services.executor.engine import load

        return CpuLane(lambda: load(config), wake)
    from noria.services.executor.cuda.choosing import choose_operations
    from noria.services.executor.cuda.lane import CudaLane
    from noria.services.executor.cuda.loading import load as load_onto
    from noria.services.executor.cuda.torch_device import open_device

    return CudaLane(lambda tell: load_onto(config, open_device(), choose_operations, tell), wake)
