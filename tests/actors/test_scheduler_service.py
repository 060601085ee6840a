"""The scheduler's shell over real sockets, between peers played by the test."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec
import zmq
from fakes.desk import generated, stream, submission
from fakes.executor import FakeExecutor, geometry

from noria.proto.base import End, Ended, Header, Service
from noria.proto.execution import StepPlan
from noria.proto.lifecycle import Hello, State
from noria.proto.output import Gap, Resend, Tokens
from noria.proto.scheduling import Capacity, Reclaims, Submit, Withdraw
from noria.proto.wire import Codec, every_kind
from noria.services.scheduler.core.settings import Settings
from noria.services.scheduler.service import SchedulerService
from noria.shared.actor import Actor
from noria.shared.config import RuntimeSettings, TelemetrySettings
from noria.shared.endpoints import mailbox, prepare_runtime_dir
from noria.shared.inspect import inspect
from noria.shared.mailbox import Mailbox
from noria.shared.telemetry import Telemetry

PEERS = (Service.ADMISSION, Service.EXECUTOR, Service.DETOKENIZER)
PATIENCE_S = 10.0
Kind = TypeVar("Kind", bound=msgspec.Struct)


class Peer:
    """A service that the test plays: it greets the scheduler and keeps what it hears."""

    def __init__(self, service: Service, settings: RuntimeSettings) -> None:
        to = {Service.SCHEDULER: mailbox(settings, Service.SCHEDULER)}
        self.mailbox = Mailbox(service, mailbox(settings, service), to, settings)
        self.heard: list[msgspec.Struct] = []

    def join(self) -> None:
        """Greet until the scheduler has greeted back."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.mailbox.links[Service.SCHEDULER].joined:
            assert time.monotonic() < deadline, "the scheduler does not greet"
            self.mailbox.send_once(Service.SCHEDULER, Hello(1, State.READY))
            self.listen(20)

    def send(self, body: msgspec.Struct) -> None:
        assert self.mailbox.send(Service.SCHEDULER, body)

    def listen(self, timeout_ms: int) -> None:
        self.mailbox.router.poll(timeout_ms, zmq.POLLIN)
        for _, header, body in self.mailbox.receive(256):
            if isinstance(body, Hello):
                if self.mailbox.greet(header, answer=body.answer):
                    self.mailbox.send_once(Service.SCHEDULER, Hello(1, State.READY, answer=True))
            elif self.mailbox.current(header):
                self.heard.append(body)

    def wait_for(self, kind: type[Kind]) -> Kind:
        """The next message of a kind; earlier ones of other kinds are dropped."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            while self.heard:
                body = self.heard.pop(0)
                if isinstance(body, kind):
                    return body
            self.listen(100)
        raise AssertionError(f"no {kind.__name__} came")


@contextmanager
def scheduler(folder: Path, options: Settings) -> Iterator[tuple[RuntimeSettings, dict[Service, Peer]]]:
    """A running scheduler and its three peers, which have not greeted yet."""
    settings = RuntimeSettings(dir=str(folder / "run"))
    prepare_runtime_dir(settings)
    endpoints = {peer: mailbox(settings, peer) for peer in PEERS}
    post = Mailbox(Service.SCHEDULER, mailbox(settings, Service.SCHEDULER), endpoints, settings)
    actor = Actor(post, settings)
    telemetry = Telemetry(Service.SCHEDULER, post.incarnation, TelemetrySettings())
    thread = threading.Thread(target=actor.run, args=(SchedulerService(actor, telemetry, options),))
    peers = {peer: Peer(peer, settings) for peer in PEERS}
    thread.start()
    try:
        yield settings, peers
    finally:
        actor.stop()
        thread.join(PATIENCE_S)
        for peer in peers.values():
            peer.mailbox.close()


def state(settings: RuntimeSettings) -> dict[str, object]:
    snapshot = inspect(settings, Service.SCHEDULER, PATIENCE_S)
    assert snapshot is not None
    decoded = msgspec.json.decode(snapshot.json)
    assert isinstance(decoded, dict)
    return decoded


def test_streams_run_from_submission_to_their_end_and_nothing_is_left(tmp_path: Path) -> None:
    with scheduler(tmp_path, Settings()) as (settings, peers):
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
        assert state(settings)["finished"] == 3
        admission.send(Ended(tuple(stream(number) for number in range(3))))
        fake.send(executor.wait_for(StepPlan))
        executor.send(fake.step())
        keys = ("waiting", "running", "finished", "blocks_used", "slots_used", "in_flight")
        deadline = time.monotonic() + PATIENCE_S
        while any(state(settings)[key] for key in keys) and time.monotonic() < deadline:
            pass
        assert {key: state(settings)[key] for key in keys} == dict.fromkeys(keys, 0)


def test_one_message_carries_the_news_of_all_streams_in_a_step(tmp_path: Path) -> None:
    with scheduler(tmp_path, Settings(steps_in_flight=1)) as (_, peers):
        admission, executor, detokenizer = (peers[each] for each in PEERS)
        for peer in peers.values():
            peer.join()
        fake = FakeExecutor(geometry())
        admission.send(Submit(tuple(submission(number) for number in range(5))))
        executor.send(fake.geometry)
        fake.send(executor.wait_for(StepPlan))
        executor.send(fake.step())
        assert len(detokenizer.wait_for(Tokens).runs) == 5


def test_a_detokenizer_that_joins_late_asks_for_what_it_missed(tmp_path: Path) -> None:
    with scheduler(tmp_path, Settings()) as (settings, peers):
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
        while state(settings)["finished"] != 1:
            assert time.monotonic() < deadline
        detokenizer.join()
        detokenizer.send(Resend((Gap(stream(1), 1),)))
        (run,) = detokenizer.wait_for(Tokens).runs
        assert (run.start, list(run.ids), bool(run.end)) == (1, generated(asked)[1:], True)


def test_a_withdrawn_stream_is_reclaimed_and_admission_is_told(tmp_path: Path) -> None:
    with scheduler(tmp_path, Settings()) as (_, peers):
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
    service = SchedulerService(actor, telemetry, Settings(steps_in_flight=1))
    header = Header("Hello", "", 7, post.incarnation)
    codec = Codec(every_kind())

    def outbox(peer: Service) -> list[msgspec.Struct]:
        waiting = post.links[peer].outbox
        bodies = [codec.body(codec.header(frames), frames) for frames in waiting]
        waiting.clear()
        return bodies

    try:
        for peer in PEERS:
            post.greet(Header("Hello", peer.value, 7, post.incarnation), answer=False)
            service.joined(peer)
        fake = FakeExecutor(geometry())
        asked = submission(1, output=6)
        service.receive(Service.ADMISSION, header, Submit((asked,)))
        service.receive(Service.EXECUTOR, header, fake.geometry)
        retries = []
        for _ in range(6):
            retries.append(service.advance(time.monotonic_ns()))
            (plan,) = outbox(Service.EXECUTOR)
            assert isinstance(plan, StepPlan)
            fake.send(plan)
            service.receive(Service.EXECUTOR, header, fake.step())
        assert [retry is not None for retry in retries] == [False, False, False, True, True, True]
        taken = outbox(Service.DETOKENIZER)
        assert service.advance(time.monotonic_ns()) is None
        taken += outbox(Service.DETOKENIZER)
        runs = [run for each in taken if isinstance(each, Tokens) for run in each.runs]
        assert [(run.start, len(run.ids), run.end) for run in runs] == [(0, 1, 0), (1, 1, 0), (2, 4, End.LENGTH)]
        assert [token for run in runs for token in run.ids] == generated(asked)
    finally:
        actor.stop()
        actor.run(service)  # closes what it was given
