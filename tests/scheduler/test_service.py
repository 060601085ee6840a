"""The scheduler's shell over real sockets, between peers played by the test."""

import time
from pathlib import Path

import msgspec
from fakes.desk import generated, stream, submission
from fakes.executor import FakeExecutor, geometry
from fakes.neighbours import PATIENCE_S, PEERS, Peer, running_scheduler, scheduler_state

from noria.proto.base import End, Ended, Header, Service
from noria.proto.execution import StepPlan
from noria.proto.output import Gap, Resend, Tokens
from noria.proto.scheduling import Capacity, Reclaims, Submission, Submit, Withdraw
from noria.proto.wire import Codec, every_kind
from noria.services.scheduler.capacity_updates import PREDICTIONS_NS
from noria.services.scheduler.core.interface.settings import CoreSettings
from noria.services.scheduler.service import SchedulerService
from noria.shared.actor.actor import Actor
from noria.shared.actor.endpoints import mailbox, prepare_runtime_dir
from noria.shared.actor.mailbox import Mailbox
from noria.shared.config.config import RuntimeSettings, TelemetrySettings
from noria.shared.telemetry.telemetry import Telemetry


def held_back(settings: RuntimeSettings, steps: int) -> object:
    """How many runs of tokens the scheduler holds back once it has taken the results of so many steps."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        state = scheduler_state(settings)
        counters = state["counters"]
        assert isinstance(counters, dict)
        if counters["steps"] == steps:
            return state["tokens_held"]
    raise AssertionError(f"{steps} steps were not taken")


def test_streams_run_from_submission_to_their_end_and_nothing_is_left(tmp_path: Path) -> None:
    with running_scheduler(tmp_path, CoreSettings()) as (settings, peers):
        admission, executor, detokenizer = (peers[each] for each in PEERS)
        for peer in peers.values():
            peer.join()
        assert not admission.wait_for(Capacity).ready
        fake = FakeExecutor(geometry())
        executor.send(fake.geometry)
        assert admission.wait_for(Capacity).ready
        asked = [submission(number, output=5) for number in range(3)]
        admission.send(Submit(tuple(asked)))
        received: dict[int, list[int]] = {0: [], 1: [], 2: []}
        ended: list[int] = []
        while len(ended) < 3:
            fake.send(executor.wait_for(StepPlan))
            executor.send(fake.step())
            for run in detokenizer.wait_for(Tokens).runs:
                received[run.stream.request] += run.ids
                ended += [run.stream.request] if run.end else []
        assert received == {number: generated(asked[number]) for number in range(3)}
        assert scheduler_state(settings)["finished"] == 3
        admission.send(Ended(tuple(stream(number) for number in range(3))))
        fake.send(executor.wait_for(StepPlan))
        executor.send(fake.step())
        keys = ("waiting", "running", "finished", "blocks_used", "slots_used", "in_flight")
        deadline = time.monotonic() + PATIENCE_S
        while any(scheduler_state(settings)[key] for key in keys) and time.monotonic() < deadline:
            pass
        assert {key: scheduler_state(settings)[key] for key in keys} == dict.fromkeys(keys, 0)


def test_one_message_carries_the_news_of_all_streams_in_a_step(tmp_path: Path) -> None:
    with running_scheduler(tmp_path, CoreSettings(steps_in_flight=1)) as (_, peers):
        admission, executor, detokenizer = (peers[each] for each in PEERS)
        for peer in peers.values():
            peer.join()
        fake = FakeExecutor(geometry())
        admission.send(Submit(tuple(submission(number) for number in range(5))))
        executor.send(fake.geometry)
        fake.send(executor.wait_for(StepPlan))
        executor.send(fake.step())
        assert len(detokenizer.wait_for(Tokens).runs) == 5


def after_steps(steps: int, asked: Submission, peers: dict[Service, Peer]) -> FakeExecutor:
    """Let one stream run for so many steps."""
    for peer in peers.values():
        peer.join()
    fake, executor = FakeExecutor(geometry()), peers[Service.EXECUTOR]
    peers[Service.ADMISSION].send(Submit((asked,)))
    executor.send(fake.geometry)
    for _ in range(steps):
        fake.send(executor.wait_for(StepPlan))
        executor.send(fake.step())
    return fake


def test_tokens_that_nobody_waits_for_come_with_the_end_of_a_stream(tmp_path: Path) -> None:
    asked = submission(1, output=8)
    with running_scheduler(tmp_path, CoreSettings(), tokens_interval_ns=60_000_000_000) as (settings, peers):
        fake = after_steps(7, asked, peers)
        executor, detokenizer = peers[Service.EXECUTOR], peers[Service.DETOKENIZER]
        # The first is told at once, the second if it was planned before anybody knew how long a step takes.
        assert held_back(settings, 7) in (5, 6)
        fake.send(executor.wait_for(StepPlan))
        executor.send(fake.step())
        told = []
        while not told or not told[-1].end:
            (run,) = detokenizer.wait_for(Tokens).runs
            told.append(run)
        assert len(told) <= 3
        assert [token for run in told for token in run.ids] == generated(asked)
        assert held_back(settings, 8) == 0


def test_a_detokenizer_that_joins_while_tokens_are_held_back_asks_for_them(tmp_path: Path) -> None:
    asked = submission(1, output=50)
    with running_scheduler(tmp_path, CoreSettings(), tokens_interval_ns=60_000_000_000) as (settings, peers):
        after_steps(4, asked, peers)
        assert held_back(settings, 4) in (2, 3)
        peers[Service.DETOKENIZER].mailbox.close()
        successor = peers[Service.DETOKENIZER] = Peer(Service.DETOKENIZER, settings)
        successor.join()
        (standing,) = successor.wait_for(Tokens).runs
        assert (standing.start, standing.ids) == (4, ())
        assert scheduler_state(settings)["tokens_held"] == 0
        successor.send(Resend((Gap(stream(1), 0),)))
        (run,) = successor.wait_for(Tokens).runs
        assert (run.start, list(run.ids)) == (0, generated(asked)[:4])


def test_a_detokenizer_that_joins_late_is_told_where_streams_stand_and_asks_for_what_it_missed(tmp_path: Path) -> None:
    with running_scheduler(tmp_path, CoreSettings()) as (settings, peers):
        admission, executor, detokenizer = (peers[each] for each in PEERS)
        admission.join()
        executor.join()
        fake = FakeExecutor(geometry())
        asked = submission(1, output=3)
        admission.send(Submit((asked,)))
        executor.send(fake.geometry)
        for _ in range(3):
            fake.send(executor.wait_for(StepPlan))
            executor.send(fake.step())
        deadline = time.monotonic() + PATIENCE_S
        while scheduler_state(settings)["finished"] != 1:
            assert time.monotonic() < deadline
        detokenizer.join()
        # What it missed may leave before, when it joins in the very turn in which the step ends.
        while (standing := detokenizer.wait_for(Tokens).runs[-1]).ids:
            pass
        assert (standing.start, standing.ids, bool(standing.end)) == (3, (), True)
        detokenizer.send(Resend((Gap(stream(1), 1),)))
        while (run := detokenizer.wait_for(Tokens).runs[-1]).start != 1:
            pass
        assert (run.start, list(run.ids), bool(run.end)) == (1, generated(asked)[1:], True)


def test_a_withdrawn_stream_is_reclaimed_and_admission_is_told(tmp_path: Path) -> None:
    with running_scheduler(tmp_path, CoreSettings()) as (_, peers):
        admission, executor, _ = (peers[each] for each in PEERS)
        for peer in peers.values():
            peer.join()
        fake = FakeExecutor(geometry())
        executor.send(fake.geometry)
        admission.send(Submit((submission(1, output=50),)))
        fake.send(executor.wait_for(StepPlan))
        fake.send(executor.wait_for(StepPlan))
        admission.send(Withdraw((stream(1),)))
        executor.send(fake.step())
        executor.send(fake.step())
        (entry,) = admission.wait_for(Reclaims).entries
        assert entry.stream == stream(1)
        assert entry.blocks == 2
        assert entry.steps <= 2


def test_tokens_that_an_outbox_did_not_take_are_sent_later_without_a_gap(tmp_path: Path) -> None:
    settings = RuntimeSettings(dir=str(tmp_path / "run"), outbox_messages_max=2)
    prepare_runtime_dir(settings)
    # Nobody binds these endpoints, so whatever is sent stays in the outbox, where it can be read.
    post = Mailbox(
        Service.SCHEDULER,
        mailbox(settings, Service.SCHEDULER),
        {peer: mailbox(settings, peer) for peer in PEERS},
        settings,
    )
    telemetry = Telemetry(Service.SCHEDULER, post.incarnation, TelemetrySettings())
    actor = Actor(post, settings)
    service = SchedulerService(actor, telemetry, CoreSettings(steps_in_flight=1))
    header = Header("Hello", "", 7, post.incarnation)
    codec = Codec(every_kind())

    def outbox(peer: Service) -> list[msgspec.Struct]:
        waiting = post.links[peer].outbox
        bodies = [codec.body(codec.header(frames), frames) for frames in waiting]
        waiting.clear()
        return bodies

    now_ns = time.monotonic_ns()

    def tries_again() -> bool:
        """Whether a turn wants another one before predictions are due."""
        wanted_ns = service.advance(now_ns)
        return wanted_ns is not None and wanted_ns < now_ns + PREDICTIONS_NS

    try:
        for peer in PEERS:
            post.accept_hello(Header("Hello", peer.value, 7, post.incarnation), answer=False)
            service.joined(peer)
        fake = FakeExecutor(geometry())
        asked = submission(1, output=6)
        service.receive(Service.ADMISSION, header, Submit((asked,)))
        service.receive(Service.EXECUTOR, header, fake.geometry)
        retries = []
        for _ in range(6):
            retries.append(tries_again())
            (plan,) = outbox(Service.EXECUTOR)
            assert isinstance(plan, StepPlan)
            fake.send(plan)
            service.receive(Service.EXECUTOR, header, fake.step())
        assert retries == [False, False, False, True, True, True]
        taken = outbox(Service.DETOKENIZER)
        assert not tries_again()
        taken += outbox(Service.DETOKENIZER)
        runs = [run for each in taken if isinstance(each, Tokens) for run in each.runs]
        assert [(run.start, len(run.ids), run.end) for run in runs] == [(0, 1, 0), (1, 1, 0), (2, 4, End.LENGTH)]
        assert [token for run in runs for token in run.ids] == generated(asked)
    finally:
        actor.stop()
        actor.run(service)  # closes what it was given
