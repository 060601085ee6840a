"""Makes the lane that is configured. What a lane needs is imported when it is made: CUDA costs a process much."""

from collections.abc import Callable

from noria.services.executor.config import ExecutorConfig
from noria.services.executor.runner.model_runner import Lane


def make_lane(config: ExecutorConfig, wake: Callable[[], None]) -> Lane:
    """A lane that loads its model and computes; `wake` is called when it has news."""
    if config.device == "cpu":
        from noria.services.executor.cpu.cpu_runner import CpuLane
        from noria.services.executor.cpu.loading import load

        return CpuLane(lambda: load(config), wake)
    from noria.services.executor.cuda.backend import choose_operations
    from noria.services.executor.cuda.cuda_runner import CudaLane
    from noria.services.executor.cuda.device.torch_device import open_device
    from noria.services.executor.cuda.loading import load as load_onto

    return CudaLane(lambda tell: load_onto(config, open_device(), choose_operations, tell), wake)
