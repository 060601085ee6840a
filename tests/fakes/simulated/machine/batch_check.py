"""Checks that a batch of the product's executor says the same as its plan about the true slots."""

from collections.abc import Iterator

import numpy as np
from fakes.executor import FakeExecutor
from fakes.rules import require

from noria.proto.execution import Slice, StepPlan
from noria.services.executor.plan.batch import Batch
from noria.services.executor.plan.limits import ExecutorLimits
from noria.services.executor.plan.sampling_metadata import SamplingMetadata


def check_batch(batch: Batch, plan: StepPlan, fake: FakeExecutor, shape: ExecutorLimits) -> None:
    """Raise ProtocolError unless the arrays of a step just computed are right; its sampler's history is complete."""
    rows = _rows(plan)
    carried = [(first, piece.slot) for piece, first in rows if piece.carry]
    require(list(zip(batch.carry_rows.tolist(), batch.carry_slots.tolist(), strict=True)) == carried, "carried rows")
    for number, (piece, first) in enumerate(rows):
        slot, end = fake.slot(piece.slot), piece.start + piece.length
        here = slice(first, first + piece.length)
        require(batch.positions[here].tolist() == list(range(piece.start, end)), "positions of a slice")
        if not piece.carry:
            require(batch.token_ids[here].tolist() == slot.ids[piece.start : end], "ids of a slice")
        for group, pages in enumerate(batch.pages):
            first_read = max(0, piece.start - pages.window + 1) if pages.window else 0
            for position in range(first_read, end):
                place, offset = fake.place(group, slot.tables[group], position)
                block = int(shape.rows(group, np.array([place]), shape.num_chunks)[0])
                page = position // shape.page_size
                require(pages.table[number, page % pages.ring if pages.ring else page] == block, "pages of a slice")
                if position >= piece.start:
                    at = pages.write_slots[first + position - piece.start]
                    require(at == block * shape.page_size + offset, "where a token's keys go")
    if batch.sampler is not None:
        _verify_sampling(batch.sampler, rows, fake)


def _rows(plan: StepPlan) -> list[tuple[Slice, int]]:
    """Slices with their first query row."""
    rows, row = [], 0
    for piece in plan.slices:
        rows.append((piece, row))
        row += piece.length
    return rows


def _verify_sampling(sampler: SamplingMetadata, rows: list[tuple[Slice, int]], fake: FakeExecutor) -> None:
    for row, (piece, first) in enumerate(_sampled(rows)):
        slot, end = fake.slot(piece.slot), piece.start + piece.length
        sampling, prompt = slot.fill.sampling, len(slot.fill.prompt_ids)
        require(sampler.rows[row] == first + piece.length - 1 and sampler.slots[row] == piece.slot, "sampled rows")
        require(sampler.positions[row] == end, "the position of a token to come")
        require(sampler.parameters["seed"][row] == (sampling.seed or 0), "a stream's own seed")
        begin = prompt if sampling.repetition_penalty == 1 else 0
        plain = sampling.repetition_penalty == 1 and not sampling.presence_penalty and not sampling.frequency_penalty
        history = sampler.history[sampler.history_starts[row] : sampler.history_starts[row + 1]].tolist()
        require(history == ([] if plain else slot.ids[begin:end]), "what penalties count")
        require(sampler.prompts[row] == (0 if plain else prompt - begin), "how much of it is prompt")
        banned = slot.fill.end_ids if end - prompt < sampling.min_tokens else ()
        ids = sampler.bias_ids[sampler.bias_starts[row] : sampler.bias_starts[row + 1]].tolist()
        require(ids == [*(token for token, _ in sampling.logit_bias), *banned], "what is added to logits")


def _sampled(rows: list[tuple[Slice, int]]) -> Iterator[tuple[Slice, int]]:
    return ((piece, first) for piece, first in rows if piece.sample)
