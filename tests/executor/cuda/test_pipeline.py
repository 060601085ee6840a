"""A device's pipeline on a device of queues: the same tokens as the processor's engine, whatever is done in which order."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from fakes.device import FakeDevice, RaceError
from fakes.device_bench import Asked, Drive, pipeline, reference, shape_of
from fakes.tiny_weights import write_tiny_weights

from noria.proto.base import Stream
from noria.proto.execution import Copy, Fill, Slice, StepPlan
from noria.proto.sampling import Sampling
from noria.services.executor.cuda.pipeline import Pipeline, StepFlight
from noria.services.executor.plan.batch import Batch
from noria.services.executor.plan.batch_builder import prepare
from noria.services.executor.plan.limits import ExecutorLimits
from noria.services.executor.plan.slot_table import SlotTable

SEEDS = range(6)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_weights(tmp_path_factory.mktemp("models") / "tiny")


def asked(seed: int, count: int = 7, longest: int = 60) -> list[Asked]:
    chance = random.Random(seed)
    return [
        (
            tuple(chance.randrange(2, 96) for _ in range(chance.randrange(1, longest))),
            Sampling(temperature=0.0, max_tokens=chance.randrange(1, 25), ignore_eos=True),
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("seed", SEEDS)
def test_steps_in_flight_give_the_processors_tokens_in_any_order_of_the_devices_work(model: Path, seed: int) -> None:
    shape = shape_of(model)
    engine = reference(model, shape)
    want = Drive(shape).run(engine, asked(seed))
    device = FakeDevice(seed, eagerness=(0.0, 0.3, 0.8)[seed % 3])
    drive = Drive(shape)
    assert engine.agrees(drive.run(pipeline(model, shape, device), asked(seed), gap=seed % 4), want)
    assert {"eager", "capture", "replay"} <= set(drive.ways)
    assert device.replays > device.captures > 0


def test_sliding_layers_and_other_families_are_computed_from_their_rings(tmp_path: Path) -> None:
    folder = write_tiny_weights(
        tmp_path / "sliding", model_type="mistral", sliding_window=20, num_hidden_layers=2, tie_word_embeddings=True
    )
    shape = shape_of(folder)
    assert shape.groups[0].ring_pages
    engine = reference(folder, shape)
    want = Drive(shape).run(engine, asked(3, longest=120))
    assert engine.agrees(Drive(shape).run(pipeline(folder, shape, FakeDevice(3)), asked(3, longest=120)), want)


@pytest.mark.parametrize("seed", SEEDS)
def test_streams_that_are_swapped_out_and_in_beside_the_compute_go_on_with_their_tokens(model: Path, seed: int) -> None:
    # 30 chunks are too few for six sequences: some give way to the host and come back, between replays of graphs.
    tight = shape_of(model, num_blocks=32, host_slots=64)
    requests = asked(seed, count=9, longest=60)
    engine = reference(model, shape_of(model))
    want = Drive(shape_of(model)).run(engine, requests)
    drive = Drive(tight, safety_margin=0.0)
    made = pipeline(model, tight, FakeDevice(seed, eagerness=(0.1, 0.5)[seed % 2]))
    assert engine.agrees(drive.run(made, requests), want)
    assert drive.swapped and "replay" in drive.ways


def test_a_step_is_the_same_whether_it_is_replayed_or_computed_plainly(model: Path) -> None:
    shape = shape_of(model)
    plain = Drive(shape).run(pipeline(model, shape, FakeDevice(1), graphs_max=0), asked(1))
    recorded = Drive(shape)
    assert recorded.run(pipeline(model, shape, FakeDevice(1)), asked(1)) == plain
    assert Drive(shape, in_flight=1).run(pipeline(model, shape, FakeDevice(2)), asked(1)) == plain


@pytest.mark.parametrize(
    ("stream", "found"),
    [
        ("compute", "device in 0: copy device in 0 to step in on compute is not ordered after copy host in 0"),
        ("copy out", "device out 0: copy device out 0 to host out 0 on copy out is not ordered after"),
        ("swap", "staging out: copy staging out to host pool on swap is not ordered after work on compute"),
    ],
)
def test_a_stream_that_does_not_wait_for_the_others_is_a_race(model: Path, stream: str, found: str) -> None:
    tight = shape_of(model, num_blocks=32, host_slots=64)
    device = FakeDevice(0, forgets=frozenset({stream}))
    with pytest.raises(RaceError, match=found):
        Drive(tight, safety_margin=0.0).run(pipeline(model, tight, device), asked(0, count=9))


def plans(shape: ExecutorLimits) -> Iterator[Batch]:
    """A prompt; then its first two blocks out to the host beside a token; then back, elsewhere, beside another."""
    slots = SlotTable(shape)
    fill = Fill(0, Stream(0, 0), 0, tuple(range(5, 15)), (), Sampling(temperature=0.0), (), ((2, 3, 4, 5, 6),))
    yield prepare(slots, StepPlan(1, 1, (Slice(0, 0, 10, False, True),), fill=(fill,)))
    out = (Copy(0, 2, 7), Copy(0, 3, 1))
    yield prepare(slots, StepPlan(1, 2, (Slice(0, 10, 1, True, True),), swap_out=out))
    back = (Copy(0, 7, 10), Copy(0, 1, 11))
    yield prepare(slots, StepPlan(1, 3, (Slice(0, 11, 1, True, True),), swap_in=back))


def test_a_step_is_over_while_what_it_swapped_out_is_still_on_its_way(model: Path) -> None:
    shape = shape_of(model, host_slots=16)
    device = FakeDevice(0)
    made = pipeline(model, shape, device)
    first, out, _ = plans(shape)
    made.finish(made.launch(first))
    pages = made.engine.pool.pages
    rows = torch.from_numpy(made.engine.pool.rows([(0, 2), (0, 3)]))
    kept = pages[rows].clone()
    device.stalled = frozenset({"swap"})
    made.finish(made.launch(out))
    assert not made.moves.host.any()
    device.stalled = frozenset()
    device.finish()
    size = made.engine.pool.block_bytes(0)
    assert made.moves.host[7 * size : 8 * size].equal(kept[: len(kept) // 2].flatten())
    assert made.moves.host[size : 2 * size].equal(kept[len(kept) // 2 :].flatten())


def test_what_comes_in_is_on_the_device_before_the_step_before_is_over(model: Path) -> None:
    shape = shape_of(model, host_slots=16)
    device = FakeDevice(0)
    made = pipeline(model, shape, device)
    first, out, back = plans(shape)
    for batch in (first, out):
        made.finish(made.launch(batch))
    device.finish()
    pool = made.engine.pool
    before, after = (torch.from_numpy(pool.rows([(0, each) for each in blocks])) for blocks in ((2, 3), (10, 11)))
    device.stalled = frozenset({"compute"})
    flight = made.launch(back)
    while device.turn():
        pass
    assert made.moves._in.data[: 2 * pool.block_bytes(0)].equal(pool.pages[before].flatten())
    assert not pool.pages[after].any()
    device.stalled = frozenset()
    made.finish(flight)
    assert pool.pages[after].equal(pool.pages[before])


def test_moves_larger_than_the_staging_buffers_go_in_portions_one_after_the_other(model: Path) -> None:
    shape = shape_of(model, host_slots=16)
    made = pipeline(model, shape, FakeDevice(6), staging_bytes=1)  # room for one block, so that each is a portion
    slots = SlotTable(shape)
    fill = Fill(0, Stream(0, 0), 0, tuple(range(5, 25)), (), Sampling(temperature=0.0), (), ((2, 3, 4, 5, 6, 7),))
    first = StepPlan(1, 1, (Slice(0, 0, 20, False, True),), fill=(fill,))
    out = StepPlan(1, 2, (), swap_out=tuple(Copy(0, 2 + each, 9 - each) for each in range(5)))
    back = StepPlan(1, 3, (), swap_in=tuple(Copy(0, 9 - each, 20 + each) for each in range(3)))
    rest = StepPlan(1, 4, (), swap_in=tuple(Copy(0, 9 - each, 20 + each) for each in range(3, 5)))
    flights: list[StepFlight] = []
    for plan in (first, out, back, rest):
        if len(flights) == 2:
            made.finish(flights.pop(0))
        flights.append(made.launch(prepare(slots, plan)))
    for flight in flights:
        made.finish(flight)
    pages, pool = made.engine.pool.pages, made.engine.pool
    took, got = (pages[torch.from_numpy(pool.rows([(0, first + n) for n in range(5)]))] for first in (2, 20))
    assert took.any() and got.equal(took)


class Hasty(Pipeline):
    """Takes a pair for free as soon as its step was queued."""

    def launch(self, batch: Batch) -> StepFlight:
        flight = super().launch(batch)
        flight.pair.busy = False
        return flight


def test_a_third_step_in_flight_is_a_race(model: Path) -> None:
    shape = shape_of(model)
    made = pipeline(model, shape, FakeDevice(0))
    made.__class__ = Hasty
    with pytest.raises(RaceError, match="host in 0: the host on host is not ordered after copy host in 0"):
        Drive(shape, in_flight=3).run(made, asked(0))


def test_a_shape_that_cannot_be_recorded_is_computed_plainly_and_told_once(model: Path) -> None:
    shape = shape_of(model)
    told: list[tuple[str, str]] = []
    made = pipeline(model, shape, FakeDevice(1, refuses=True))
    made.graph_runner.on_refused = lambda shape, reason: told.append((shape, reason))
    drive = Drive(shape)
    engine = reference(model, shape)
    assert engine.agrees(drive.run(made, asked(1)), Drive(shape).run(engine, asked(1)))
    assert set(drive.ways) == {"eager"}
    assert len(told) == 1 and told[0][1] == "refused" and "query tokens of" in told[0][0]
    assert len(made.graph_runner.dispatcher._refused) > 1


def test_warm_shapes_are_replayed_from_the_first_step_on_and_leave_the_cache_alone(model: Path) -> None:
    shape = shape_of(model)
    device = FakeDevice(4)
    made = pipeline(model, shape, device)
    for sizes in made.common:
        made.warm(sizes)
    assert len(made.graph_runner.dispatcher) == len(made.common)
    drive = Drive(shape)
    engine = reference(model, shape)
    requests = [((5, 6, 7), Sampling(temperature=0.0, max_tokens=12, ignore_eos=True))]
    assert engine.agrees(drive.run(made, requests), Drive(shape).run(engine, requests))
    assert drive.ways == ["eager", *["replay"] * 11]


def test_a_step_without_memory_leaves_the_pipeline_as_it_was(model: Path) -> None:
    shape = shape_of(model)
    device = FakeDevice(5)
    made = pipeline(model, shape, device)
    want = Drive(shape).run(made, asked(5))
    device.trouble = [MemoryError("no room")]
    with pytest.raises(MemoryError):
        Drive(shape).run(made, asked(5))
    made.make_room()
    assert len(made.graph_runner.dispatcher) == 0
    device.finish()
    assert Drive(shape).run(made, asked(5)) == want


def kinds(seed: int) -> list[Asked]:
    """Greedy, sampled and penalised requests."""
    chance = random.Random(seed)
    ways = (
        {"temperature": 0.0},
        {"temperature": 0.8, "top_k": 20},
        {"temperature": 0.0, "repetition_penalty": 1.3},
        {"temperature": 1.0, "presence_penalty": 0.6, "logit_bias": ((9, 2.0),)},
        {"temperature": 0.7, "logprobs": 1},
    )
    return [
        (
            tuple(chance.randrange(2, 96) for _ in range(chance.randrange(1, 70))),
            Sampling(seed=number, max_tokens=chance.randrange(1, 40), ignore_eos=True, **chance.choice(ways)),  # type: ignore[arg-type]
        )
        for number in range(chance.randrange(2, 12))
    ]


def soak(model: Path, seed: int) -> None:
    """One run whose every choice is the seed's: requests, memory, graphs kept, arrivals, the order of the device's work."""
    chance = random.Random(seed)
    requests = kinds(seed)
    engine = reference(model, shape_of(model))
    want = Drive(shape_of(model)).run(engine, requests)
    tight = shape_of(model, num_blocks=chance.choice((30, 40, 64)), host_slots=chance.choice((0, 16, 64)))
    device = FakeDevice(seed, eagerness=chance.random() * 0.9)
    graphs_max, staging_bytes = chance.choice((0, 2, 5, 16)), chance.choice((1, 4000, 1 << 20))
    made = pipeline(model, tight, device, graphs_max=graphs_max, staging_bytes=staging_bytes)
    drive = Drive(tight, in_flight=chance.choice((1, 2, 2)), safety_margin=chance.choice((None, 0.0)))
    drive.interleave = lambda: chance.random() < 0.2
    assert engine.agrees(drive.run(made, requests, gap=chance.randrange(4)), want)


@pytest.mark.parametrize("seed", range(100, 106))
def test_whatever_a_seed_chooses_the_tokens_are_the_processors(model: Path, seed: int) -> None:
    soak(model, seed)


@pytest.mark.slow
def test_whatever_any_of_many_seeds_chooses_the_tokens_are_the_processors(model: Path) -> None:
    for seed in range(1000, 1400):
        soak(model, seed)
