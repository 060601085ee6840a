"""Transformers' continuous batching on the same weights and requests."""

import random
import time
from collections.abc import Sequence
from typing import Any

from gpu.bench import GpuBench

PROMPT_TOKENS = 128
OUTPUT_TOKENS = 64


def peer_speeds(bench: GpuBench, name: str, network: Any, vocabulary: int, batches: Sequence[int]) -> dict[int, float]:
    """Tokens per second of transformers' continuous batching for the same requests."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    found: dict[int, float] = {}
    with bench.checking(f"{name}, transformers' continuous batching") as report:
        generation = GenerationConfig(max_new_tokens=OUTPUT_TOKENS, do_sample=False, eos_token_id=-1, pad_token_id=0)
        batching = ContinuousBatchingConfig(
            max_requests_per_batch=max(batches), max_memory_percent=0.5, use_cuda_graph=True
        )
        for batch in batches:
            chance = random.Random(batch)
            prompts = [[chance.randrange(3, vocabulary) for _ in range(PROMPT_TOKENS)] for _ in range(batch)]
            for _ in range(2):  # the first warms up
                began_s = time.monotonic()
                outputs = network.generate_batch(
                    prompts, generation_config=generation, continuous_batching_config=batching, persistent_manager=True
                )
                seconds = time.monotonic() - began_s
            count = sum(len(each.generated_tokens) for each in outputs.values())
            found[batch] = count / seconds
        network.destroy_cached_continuous_batching_manager()
        report |= {f"tokens_per_s at {batch}": rate for batch, rate in found.items()}
    return found
