"""Checks that a hosted model gives over the paged cache what its plain forward pass gives, and the same bits in any batch.

Two random sequences are computed by transformers alone, then by the engine, in pieces and together. What breaks, such
as a state that runs from one sequence into the next or scores that depend on distance, shows here and not in production.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch

from noria.proto.base import Stream
from noria.proto.execution import Fill, Slice, StepPlan
from noria.proto.sampling import Sampling
from noria.services.executor.cpu.engine import CpuEngine
from noria.services.executor.hf.hosted_model import HostedModel, judged
from noria.services.executor.kv_cache.layer_groups import cache_groups
from noria.services.executor.model.causal_lm import CausalLM
from noria.services.executor.plan.batch_builder import prepare
from noria.services.executor.plan.limits import RESERVED_CHUNKS, ExecutorLimits
from noria.services.executor.plan.slot_table import SlotTable
from noria.shared.errors import UserError

_LENGTHS: Final = (31, 18)
_PAGE_TOKENS: Final = 8
_SEED: Final = 11

Schedule = Sequence[Sequence[tuple[int, int, int]]]
"""Steps of slices (sequence, start, length)."""


def trial_prompts(vocabulary: int, context: int) -> list[list[int]]:
    """The two random sequences of the trial, as token ids."""
    generator = torch.Generator().manual_seed(_SEED)
    return [torch.randint(vocabulary, (min(n, context),), generator=generator).tolist() for n in _LENGTHS]


def tolerance(dtype: torch.dtype, quantization: str) -> float:
    """How far logits may be off the plain forward pass, as a share of their spread: rounding, not another function."""
    if quantization != "none":
        return 0.25
    # 0.02 is usual in bfloat16; mixtures, where rounding may choose another expert, reached 0.08.
    return 1e-3 if dtype == torch.float32 else 0.15


def verify(
    model: HostedModel, prompts: Sequence[Sequence[int]], expected: Sequence[torch.Tensor], allowed: float
) -> None:
    """Compute the prompts and compare. Raises UserError on a difference; clears `batch_invariant` when bits depend on the batch."""
    one, two = (len(prompt) for prompt in prompts)
    cut, first = max(1, one // 2), max(1, two - 1)
    pieces = [[(0, 0, cut), (1, 0, first)], [(1, first, two - first), (0, cut, one - cut)]]
    with judged():
        mixed = _logits(model, prompts, pieces)
    for got, want in zip(mixed, expected, strict=True):
        spread = (want - want.mean(-1, keepdim=True)).square().mean().sqrt()
        off = float((got - want).square().mean().sqrt() / spread)
        if not off <= allowed:
            raise UserError(
                f"over the paged cache its logits are {off:.2g} of their spread off its plain forward pass ({allowed:g} may be)"
            )
    alone = _logits(model, prompts, [[(0, 0, one)], [(1, 0, two)]])
    same = all(torch.equal(some, others) for some, others in zip(mixed, alone, strict=True))
    model.batch_invariant = model.batch_invariant and same


def _logits(model: CausalLM, prompts: Sequence[Sequence[int]], schedule: Schedule) -> list[torch.Tensor]:
    facts, longest = model.architecture, max(map(len, prompts))
    tokens = sum(map(len, prompts))
    groups = cache_groups(facts.windows, longest, tokens, _PAGE_TOKENS)
    pages = -(-longest // _PAGE_TOKENS)
    chunks = RESERVED_CHUNKS + len(groups) * len(prompts) * pages
    shape = ExecutorLimits(len(prompts), tokens, longest, _PAGE_TOKENS, chunks, facts.vocabulary, groups)
    engine, slots = CpuEngine(model, shape), SlotTable(shape)
    fills = tuple(
        Fill(slot, Stream(slot, 0), 0, tuple(prompt), (), Sampling(), (), _tables(shape, slot, pages))
        for slot, prompt in enumerate(prompts)
    )
    found = [torch.zeros(len(prompt), facts.vocabulary) for prompt in prompts]
    for number, step in enumerate(schedule, 1):
        slices = [each for each in step if each[2]]
        plan = StepPlan(
            1, number, tuple(Slice(*each, False, False) for each in slices), fill=fills if number == 1 else ()
        )
        logits = engine.logits_of(prepare(slots, plan), np.arange(sum(each[2] for each in slices)))
        assert logits is not None
        for (slot, start, length), part in zip(slices, torch.split(logits, [each[2] for each in slices]), strict=True):
            found[slot][start : start + length] = part
    return found


def _tables(shape: ExecutorLimits, slot: int, pages: int) -> tuple[tuple[int, ...], ...]:
    """A slot's block tables: each block in a chunk of its own."""
    return tuple(
        tuple(
            (RESERVED_CHUNKS + (number * shape.max_slots + slot) * pages + page) * group.blocks_per_chunk
            for page in range(min(pages, group.ring_pages or pages))
        )
        for number, group in enumerate(shape.groups)
    )
