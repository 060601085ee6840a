"""Plans that keep to the protocol and are wrong: refused, or computed within the executor's own memory."""

import copy
import random
from pathlib import Path

import msgspec
import numpy as np
import pytest
from executor.numerics.comparison import LEVELS, decoder_of
from executor.numerics.driving import Answer, Asked, Driver, Way
from fakes.simulated.faults.wrong_messages import corrupted_body
from fakes.tiny_model import build_tiny_model

from noria.proto.execution import StepDone, StepPlan
from noria.proto.sampling import Sampling
from noria.services.executor.plan.batch import Batch
from noria.services.executor.plan.batch_builder import prepare, results
from noria.services.executor.plan.limits import RESERVED_CHUNKS, ExecutorLimits
from noria.services.executor.plan.slot_table import IllegalPlanError

pytestmark = pytest.mark.usefixtures("one_thread")
_WRONG_PER_PLAN = 12
# What ends an executor, with its reason, as any fault of ours would.
_RAISED = (ValueError, RuntimeError, OverflowError, IndexError, RuntimeWarning)
_DECODER = msgspec.msgpack.Decoder(StepPlan)


def wrong_ones(plan: StepPlan, draw: random.Random) -> list[StepPlan]:
    """A plan with one or two values changed, many times."""
    body = msgspec.msgpack.encode(plan)
    found = []
    for _ in range(_WRONG_PER_PLAN):
        try:
            found.append(_DECODER.decode(corrupted_body(body, draw)))
        except msgspec.ValidationError:
            continue
    return [each for each in found if each != plan]


def check_bounds(batch: Batch, shape: ExecutorLimits) -> None:
    """Whatever the step reads and writes is there, and none of it is padding's."""
    assert ((batch.token_ids >= 0) & (batch.token_ids < shape.vocabulary)).all()
    assert ((batch.positions >= 0) & (batch.positions < shape.max_model_tokens)).all()
    assert ((batch.carry_slots >= 0) & (batch.carry_slots < shape.max_slots)).all()
    ends = batch.slices.starts + batch.slices.lengths
    for number, (pages, group) in enumerate(zip(batch.pages, shape.groups, strict=True)):
        blocks = np.array([RESERVED_CHUNKS * group.blocks_per_chunk, shape.num_chunks * group.blocks_per_chunk - 1])
        first, last = shape.rows(number, blocks, shape.num_chunks).tolist()
        rows = pages.write_slots // shape.page_size
        assert ((rows >= first) & (rows <= last)).all(), "written outside the cache"
        for table, end in zip(pages.table, ends.tolist(), strict=True):
            seen = table[: min(-(-end // shape.page_size), pages.ring or len(table))]
            assert ((seen >= first) & (seen <= last)).all(), "read outside the cache"
    if batch.sampler is not None:
        ids = batch.sampler.bias_ids
        assert ((ids >= 0) & (ids < shape.vocabulary)).all()


@pytest.mark.parametrize("level", ["", *LEVELS[-1:]])
def test_a_wrong_plan_is_refused_or_touches_nothing_but_the_cache(level: str, tmp_path: Path) -> None:
    """A fault here ends the test process: kernels read and write where the plan says."""
    import torch

    decoder = decoder_of(build_tiny_model(tmp_path, window=24), torch.float32, level)
    driver = Driver(decoder, Way(max_batch_tokens=24, num_blocks=24, page_size=4, host_slots=20), 96)
    draw = random.Random(5)
    lengths = (9, 30, 4, 17, 26)
    driver.asked = [
        Asked(
            tuple(draw.randrange(2, 250) for _ in range(length)),
            Sampling(temperature=0.8, seed=length, max_tokens=30, top_k=20, top_p=0.9, logprobs=length % 3,
                     presence_penalty=0.5, logit_bias=((5, 1.0),)),
        )
        for length in lengths
    ]  # fmt: skip
    driver.answers = [Answer() for _ in lengths]
    for number in range(len(lengths)):
        driver._submit(number)
    refused = computed = raised = 0
    while not all(answer.ended for answer in driver.answers):
        plan = driver.core.plan(driver._tick())
        assert plan is not None
        for wrong in wrong_ones(plan, draw):
            slots = copy.deepcopy(driver.slots)
            try:
                batch = prepare(slots, wrong)
                check_bounds(batch, slots.shape)
                results(slots, batch, driver.engine.run(batch))
                computed += 1
            except IllegalPlanError:
                refused += 1
            except _RAISED:
                raised += 1
        batch = prepare(driver.slots, plan)
        driver._apply(StepDone(batch.epoch, batch.number, results(driver.slots, batch, driver.engine.run(batch))))
    assert driver.core.state.counters.swaps_in or driver.core.state.counters.steps > 20
    print(f"{refused} refused, {computed} computed, {raised} raised")
    assert refused > 50 and computed > 50
