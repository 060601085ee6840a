"""A recorded run: it holds no ids, plans the same again, and can be put through another policy."""

from hashlib import blake2b
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from fakes.world import World
from msgspec.structs import replace

from noria.proto.base import Ended, Stream
from noria.proto.execution import Geometry, Group, StepPlan
from noria.proto.sampling import Sampling
from noria.proto.scheduling import StepTime, Submission, Submit
from noria.services.scheduler.core.interface.events import SchedulerEvent
from noria.services.scheduler.core.interface.settings import CoreSettings
from noria.services.scheduler.core.interface.traffic_rules import FairRules, TrafficClass
from noria.services.scheduler.observe import log_records
from noria.services.scheduler.observe.event_log import EventLog
from noria.services.scheduler.simulation.__main__ import replay, story
from noria.services.scheduler.simulation.device import SimulatedDevice
from noria.services.scheduler.simulation.jobs import simulated_request
from noria.services.scheduler.simulation.recording import RecordedRun
from noria.services.scheduler.simulation.report import table
from noria.services.scheduler.simulation.runner import Simulation
from noria.shared.errors import UserError

FIXTURE = Path(__file__).resolve().parents[2] / "fixtures/event_log_format_1"


def shape(plan: StepPlan) -> tuple[object, ...]:
    """All of a plan but ids."""
    fills = tuple(
        (each.slot, each.stream, len(each.prompt_ids), len(each.output_ids), each.blocks) for each in plan.fill
    )
    rest = (plan.release, plan.grow, plan.swap_out, plan.copies, plan.swap_in, plan.replace)
    return (plan.epoch, plan.number, plan.slices, fills, *rest)


def record(world: World, path: Path, bytes_max: int = 1 << 24) -> None:
    """Write the log that the scheduler would have written."""
    core = type(world.core)(world.settings)
    log = EventLog(path, bytes_max, world.settings, world.geometry.page_size, core.view)
    for entry in world.log:
        if isinstance(entry, SchedulerEvent):
            log.record(entry.now_ns, entry.body)
            core.apply(entry)
        else:
            log.record_planning(entry)
            core.plan(entry)
    log.close()


@pytest.mark.parametrize("deaths", [0.0, 0.005])
@pytest.mark.parametrize("seed", range(12))
def test_a_recorded_run_makes_the_same_plans_again(seed: int, deaths: float, tmp_path: Path) -> None:
    """Of a run in which schedulers die, the last life is recorded: it begins with what its executor held."""
    world = World(seed, deaths=deaths)
    world.run()
    record(world, tmp_path / "log")
    recording = RecordedRun(tmp_path / "log")
    plans = []
    for core, now_ns, body, planned in recording.replay_events():
        plans += planned
        if body is not None:
            core.apply(SchedulerEvent(now_ns, body))
    assert list(map(shape, plans)) == list(map(shape, world.plans))


RULES = FairRules(classes=(TrafficClass("interactive", rank=2, weight=4.0), TrafficClass("batch", rank=0)))
SETTINGS = CoreSettings(policy="fifo", rules=RULES, max_batch_tokens=256, max_requests_per_batch=8)
SHAPE = Geometry("", (Group(0, 1),), 4000, 2, 16, 8, 256, 1 << 16, 50_000, "", "")


def simulate(path: Path, bytes_max: int = 1 << 24) -> Simulation:
    """A run of two classes on a simulated device, recorded."""
    jobs = [
        simulated_request(
            number,
            number * 12_000_000,
            40 + number % 7 * 100,
            20,
            traffic_class=("interactive", "batch")[number % 2],
            max_tokens=20 + number % 3 * 20,
        )
        for number in range(60)
    ]
    simulation = Simulation(
        SETTINGS,
        SHAPE,
        lambda token: SimulatedDevice(StepTime(4000, 50, 0.1, 20), token),
        jobs,
        record=lambda view: EventLog(path, bytes_max, SETTINGS, 16, view),
    )
    simulation.run()
    return simulation


def test_what_is_measured_in_a_log_is_what_happened(tmp_path: Path) -> None:
    simulation = simulate(tmp_path / "log")
    _, outcomes = RecordedRun(tmp_path / "log").outcomes()
    assert [(each.first_ns, each.last_ns, each.tokens, each.end) for each in outcomes] == [
        (each.first_ns, each.last_ns, each.tokens, each.end) for each in simulation.outcomes
    ]


def test_a_log_goes_through_other_policies_and_its_own_comes_out_as_recorded(tmp_path: Path) -> None:
    simulate(tmp_path / "log")
    recorded, own, fair = replay(RecordedRun(tmp_path / "log"), ("fair",), {})
    assert (recorded.how, recorded.policy, own.policy, fair.policy) == ("recorded", "fifo", "fifo", "fair")
    for measured, simulated in zip(recorded.rows, own.rows, strict=True):
        assert simulated.requests == measured.requests == simulated.served
        assert simulated.ttft_p50_ms == pytest.approx(measured.ttft_p50_ms, rel=0.1)
        assert simulated.total_p99_ms == pytest.approx(measured.total_p99_ms, rel=0.1)
    interactive = [next(row for row in run.rows if row.traffic_class == "interactive") for run in (own, fair)]
    assert interactive[1].ttft_p99_ms < interactive[0].ttft_p99_ms
    text = table([recorded, own, fair])
    assert "interactive" in text and "fair" in text


def test_why_tells_what_a_request_waited_for(tmp_path: Path) -> None:
    simulate(tmp_path / "log")
    lines = "\n".join(story(RecordedRun(tmp_path / "log"), 40))
    assert "request 40" in lines and "class interactive" in lines
    assert "ms for a slot" in lines
    assert "its prompt was computed" in lines and "first token" in lines and "ended: " in lines
    assert story(RecordedRun(tmp_path / "log"), 4711) == []


def test_a_log_holds_no_ids_and_is_for_its_owner_alone(tmp_path: Path) -> None:
    simulate(tmp_path / "log")
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600
    submitted = [each for each in log_records.read(tmp_path / "log") if isinstance(each, log_records.SubmitRecord)]
    assert len(submitted) == 60
    assert all(len(each.pages) == each.prompt_tokens // 16 * 8 for one in submitted for each in one.arrivals)
    simulate(tmp_path / "another")
    others = [each for each in log_records.read(tmp_path / "another") if isinstance(each, log_records.SubmitRecord)]
    pages = {one.arrivals[0].pages[:8] for one in submitted}
    assert pages.isdisjoint(one.arrivals[0].pages[:8] for one in others), "each log has a secret of its own"


def test_equal_prefixes_of_one_tenant_are_equal_in_the_log_and_those_of_two_are_not(tmp_path: Path) -> None:
    prompt = tuple(range(100, 140))

    def submission(number: int, salt: bytes) -> Submission:
        return Submission(Stream(number, 0), 0, (*prompt, number), Sampling(max_tokens=2), salt=salt)

    simulation = Simulation(SETTINGS, SHAPE, lambda token: SimulatedDevice(StepTime(1000), token), [])
    log = EventLog(tmp_path / "log", 1 << 20, SETTINGS, 16, simulation.core.view)
    log.record(1, SHAPE)
    log.record(2, Submit((submission(1, b"a"), submission(2, b"a"), submission(3, b"b"))))
    log.close()
    recording = RecordedRun(tmp_path / "log")
    first, second, third = (recording.submission(each).prompt_ids for _, each in recording.arrivals.values())
    assert first[:32] == second[:32] and first[32:] != second[32:]
    assert not set(first) & set(third)


def test_a_log_is_bounded_and_a_full_one_begins_anew_with_who_lives(tmp_path: Path) -> None:
    simulate(tmp_path / "log", bytes_max=1 << 14)
    sizes = [(tmp_path / name).stat().st_size for name in ("log", "log.1")]
    assert sum(sizes) < 1.5 * (1 << 14)
    recording = RecordedRun(tmp_path / "log")
    assert not recording.whole
    assert recording.jobs(), "who lives is named again"
    runs = replay(recording, (), {})
    assert [run.how for run in runs] == ["simulated"]
    assert runs[0].rows[0].served == len(recording.jobs())


def test_a_log_cut_off_by_a_crash_is_read_up_to_there(tmp_path: Path) -> None:
    simulate(tmp_path / "log")
    whole = (tmp_path / "log").read_bytes()
    (tmp_path / "log").write_bytes(whole[:-3])
    assert len(list(log_records.read(tmp_path / "log"))) > 60


def test_ended_streams_are_forgotten_by_the_log(tmp_path: Path) -> None:
    simulation = Simulation(SETTINGS, SHAPE, lambda token: SimulatedDevice(StepTime(1000), token), [])
    log = EventLog(tmp_path / "log", 1 << 20, SETTINGS, 16, simulation.core.view)
    log.record(1, Submit((Submission(Stream(1, 0), 0, (5, 6), Sampling(max_tokens=2)),)))
    assert log.streams == 1
    log.record(2, Ended((Stream(1, 0),)))
    assert log.streams == 0
    log.close()


def test_a_log_of_the_first_format_makes_the_plans_that_were_made_when_it_was_written() -> None:
    digest = blake2b(digest_size=16)
    for core, now_ns, body, plans in RecordedRun(FIXTURE).replay_events():
        for plan in plans:
            digest.update(msgspec.json.encode(shape(plan)))
        if body is not None:
            core.apply(SchedulerEvent(now_ns, body))
    assert digest.hexdigest() == "8d2201aec847a8e5adc54e229928d6db"


def test_a_log_of_another_format_is_refused_by_its_number(tmp_path: Path) -> None:
    began, *rest = log_records.read(FIXTURE)
    assert isinstance(began, log_records.LogBegan)
    with (tmp_path / "log").open("wb") as file:
        for record in (replace(began, version=2), *rest):
            log_records.write(file, record)
    with pytest.raises(UserError, match="an event log of format 2; this version reads format 1"):
        RecordedRun(tmp_path / "log")


def test_the_tag_of_a_record_is_what_it_was_in_the_first_format() -> None:
    kinds = get_args(log_records.AnyLogRecord)
    assert {each.__struct_config__.tag for each in kinds} == {
        "Began", "Submitted", "Completed", "Withdrawn", "Forgotten", "Looked", "Asked", "Joined", "Failed", "Listed",
        "Happened", "Changed", "Planned",
    }  # fmt: skip
