"""What the executor takes from the configuration."""

import msgspec

from noria.shared.config.config import BATCH_TOKENS, Config, ModelSettings


class ExecutorConfig(msgspec.Struct, frozen=True):
    """Model, shape of a step, cache and threads; see `noria.shared.config.config` for each option's meaning.

    host_gib and host_share_max bound the pool of preempted requests' blocks. calibrate: measure how many prompt
    tokens a step should have. The last four are of GPUs.
    """

    model: ModelSettings
    max_slots: int
    max_batch_tokens: int
    page_size: int
    num_blocks: int | None
    max_memory_percent: float
    threads: int | None
    kv_cache_dtype: str = "auto"
    kernels: str = "auto"
    quantization: str = "none"
    keep_packed: bool = True
    host_gib: float = 0.0
    host_share_max: float = 0.8
    calibrate: bool = False
    device: str = "cpu"
    q_padding_interval_size: int = 64
    kv_padding_interval_size: int = 4096
    graphs_max: int = 32


def executor_config(config: Config) -> ExecutorConfig:
    """Take the executor's part of the whole configuration."""
    return ExecutorConfig(
        model=config.model,
        max_slots=config.scheduler.max_requests_per_batch,
        max_batch_tokens=config.scheduler.max_batch_tokens or BATCH_TOKENS,
        page_size=config.cache.page_size,
        num_blocks=config.cache.num_blocks,
        max_memory_percent=config.cache.max_memory_percent,
        threads=config.executor.threads,
        kv_cache_dtype=config.cache.kv_cache_dtype,
        kernels=config.executor.kernels,
        quantization=config.executor.quantization,
        keep_packed=config.executor.keep_packed,
        host_gib=config.cache.cpu_offload_space,
        host_share_max=config.cache.cpu_offload_space_safety_threshold,
        calibrate=config.scheduler.max_batch_tokens is None,
        device=config.executor.device,
        q_padding_interval_size=config.executor.q_padding_interval_size,
        kv_padding_interval_size=config.executor.kv_padding_interval_size,
        graphs_max=config.executor.graphs_max,
    )
