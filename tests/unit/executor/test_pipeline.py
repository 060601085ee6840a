"""A device's pipeline on a device of queues: the same tokens as the processor's engine, whatever is done in which order."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from fakes.device import FakeDevice, RaceError
from fakes.device_bench import Asked, Drive, pipeline, reference, shape_of
from fakes.tiny_weights import write_tiny_weights

from noria.proto.base import Sampling
from noria.services.executor.batch import Batch
from noria.services.executor.cuda.pipeline import Flight, Pipeline

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


def test_without_waits_between_streams_races_are_found(model: Path) -> None:
    shape = shape_of(model)
    with pytest.raises(RaceError, match="device in 0: copy device in 0 to step in on compute is not ordered after"):
        Drive(shape).run(pipeline(model, shape, FakeDevice(0, forgets_waits=True)), asked(0))


class Hasty(Pipeline):
    """Takes a pair for free as soon as its step was queued."""

    def launch(self, batch: Batch) -> Flight:
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
    made.recorded.told = lambda shape, reason: told.append((shape, reason))
    drive = Drive(shape)
    engine = reference(model, shape)
    assert engine.agrees(drive.run(made, asked(1)), Drive(shape).run(engine, asked(1)))
    assert set(drive.ways) == {"eager"}
    assert len(told) == 1 and told[0][1] == "refused" and "query tokens of" in told[0][0]
    assert made.recorded.book.refused > 1


def test_warm_shapes_are_replayed_from_the_first_step_on_and_leave_the_cache_alone(model: Path) -> None:
    shape = shape_of(model)
    device = FakeDevice(4)
    made = pipeline(model, shape, device)
    for sizes in made.common:
        made.warm(sizes)
    assert len(made.recorded.book) == len(made.common)
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
    assert len(made.recorded.book) == 0
    device.finish()
    assert Drive(shape).run(made, asked(5)) == want
