"""Makes the model runner of the configured device, and imports only what that device needs."""

from collections.abc import Callable

from noria.services.executor.config import ExecutorConfig
from noria.services.executor.runner.model_runner import ModelRunner


def make_runner(config: ExecutorConfig, wake: Callable[[], None]) -> ModelRunner:
    """The model runner of the configured device, which loads its model at once; `wake` is called for each of its events."""
    if config.device == "cpu":
        from noria.services.executor.cpu.cpu_runner import CpuModelRunner
        from noria.services.executor.cpu.loading import load

        return CpuModelRunner(lambda: load(config), wake)
    from noria.services.executor.cuda.backend import choose_operations
    from noria.services.executor.cuda.cuda_runner import CudaModelRunner
    from noria.services.executor.cuda.device.torch_device import open_device
    from noria.services.executor.cuda.loading import load as load_onto

    return CudaModelRunner(lambda report: load_onto(config, open_device(), choose_operations, report), wake)
