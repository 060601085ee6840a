"""Measures sampling: native and reference kernels on the same logits, in one run.

`python benchmarks/sampling.py` prints milliseconds per step, medians of alternating rounds, for 1, 8 and 32 rows. Logits
are peaked like a language model's: a few likely tokens before a long tail; `flat` draws at a temperature that makes half
of the vocabulary likely.
"""

import argparse
import time
from collections.abc import Callable
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from noria.proto.sampling import Sampling
from noria.services.executor.cpu.native.library import levels, open_kernels
from noria.services.executor.cpu.native.sampling import NativeSampling
from noria.services.executor.cpu.reference_sampling import sample
from noria.services.executor.plan.sampling_metadata import PARAMETERS, SamplerOutput, SamplingMetadata, record
from noria.services.executor.runner.machine import cores

KINDS: Final = {
    "greedy": Sampling(temperature=0.0),
    "temperature 1": Sampling(),
    "top-k 50": Sampling(top_k=50),
    "top-p .95, T=.8": Sampling(temperature=0.8, top_p=0.95),
    "min-p .05": Sampling(min_p=0.05),
    "flat top-p .95, T=1.5": Sampling(temperature=1.5, top_p=0.95),
    "penalties": Sampling(repetition_penalty=1.1, presence_penalty=0.5, frequency_penalty=0.2),
    "logprobs 5": Sampling(logprobs=5),
    "greedy, logprobs 5": Sampling(temperature=0.0, logprobs=5),
}
Sample = Callable[[torch.Tensor, SamplingMetadata], SamplerOutput]


def peaked(rows: int, vocabulary: int) -> NDArray[np.float32]:
    """Return normal logits, some of them raised by a heavy tail."""
    random = np.random.default_rng(1)
    body = random.standard_normal((rows, vocabulary)) * 2.5
    return (body + random.exponential(1.2, (rows, vocabulary))).astype(np.float32)


def sampler(sampling: Sampling, rows: int, vocabulary: int, history: int) -> SamplingMetadata:
    """Return sampler rows with the same parameters, each with so many earlier tokens."""
    penalised = sampling.repetition_penalty != 1
    counted = history if penalised else 0
    nothing = np.zeros(0, np.int64)
    ids = np.random.default_rng(2).integers(0, vocabulary, rows * counted).astype(np.int32)
    return SamplingMetadata(
        rows=np.arange(rows),
        slots=np.arange(rows),
        positions=np.arange(rows) + 1000,
        parameters=np.array([record(sampling, vocabulary)] * rows, PARAMETERS),
        history=ids,
        history_starts=np.arange(rows + 1) * counted,
        prompts=np.full(rows, counted // 2),
        pending_at=nothing,
        pending_slots=nothing,
        pending_positions=nothing,
        bias_ids=np.zeros(0, np.int32),
        bias_values=np.zeros(0, np.float32),
        bias_starts=np.zeros(rows + 1, np.int64),
    )


def measured(function: Sample, logits: NDArray[np.float32], rows: SamplingMetadata, least_s: float) -> float:
    """Return the median milliseconds of one call; each call gets new logits."""
    times = []
    began = time.monotonic()
    while time.monotonic() - began < least_s or len(times) < 3:
        fresh = torch.from_numpy(logits.copy())
        start = time.perf_counter()
        function(fresh, rows)
        times.append(time.perf_counter() - start)
    return float(np.median(times)) * 1e3


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vocabulary", type=int, default=49_152)
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 8, 32])
    parser.add_argument("--threads", type=int, default=cores())
    parser.add_argument("--history", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=0.15, help="for each figure")
    parser.add_argument("--no-reference", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    functions: dict[str, Sample] = {
        level: NativeSampling(open_kernels(level), options.vocabulary, options.threads).sample
        for level in reversed(levels())
    }
    if not options.no_reference:
        functions["reference"] = sample
    print(f"vocabulary {options.vocabulary}, {options.threads} threads, ms: {', '.join(functions)}")
    for rows in options.rows:
        logits = peaked(rows, options.vocabulary)
        for kind, sampling in KINDS.items():
            given = sampler(sampling, rows, options.vocabulary, options.history)
            found = [measured(function, logits, given, options.seconds) for function in functions.values()]
            print(f"{rows:4} rows  {kind:24}" + "".join(f"{each:10.3f}" for each in found), flush=True)


if __name__ == "__main__":
    main()
