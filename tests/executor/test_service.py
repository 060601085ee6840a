"""The real scheduler and the real executor over sockets: two steps in flight, and steps that fail on the way.

The test plays admission and the detokenizer.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from fakes.neighbours import PATIENCE_S, Peer, running_scheduler, scheduler_state
from fakes.peers import wait_for
from fakes.tiny_model import build_tiny_model

from noria.proto.base import Ended, Service, Stream
from noria.proto.output import Tokens
from noria.proto.sampling import Sampling
from noria.proto.scheduling import Capacity, Submission, Submit
from noria.services.executor.config import ExecutorConfig
from noria.services.executor.cpu.cpu_runner import CpuModelRunner
from noria.services.executor.cpu.engine import CpuEngine
from noria.services.executor.cpu.loading import load
from noria.services.executor.plan.batch import Batch
from noria.services.executor.plan.sampling_metadata import SamplerOutput
from noria.services.executor.runner.loaded_model import LoadedModel
from noria.services.executor.service import ExecutorShell
from noria.services.scheduler.core.interface.settings import CoreSettings
from noria.shared.actor.actor import Actor
from noria.shared.actor.endpoints import mailbox
from noria.shared.actor.mailbox import Mailbox
from noria.shared.config.config import ModelSettings, RuntimeSettings, TelemetrySettings
from noria.shared.telemetry.telemetry import Telemetry

OUTPUT = 24
IDLE = ("waiting", "running", "finished", "blocks_used", "slots_used", "in_flight")


@dataclass(eq=False)
class Trouble:
    """Lets a step of the executor fail or wait. failures: what the computation with this number raises."""

    failures: dict[int, Exception] = field(default_factory=dict)
    wait_for_next: bool = False
    lane: CpuModelRunner | None = None
    computed: int = 0
    prepared_meanwhile: int = 0

    def before(self, batch: Batch) -> None:
        self.computed += 1
        if self.computed in self.failures:
            raise self.failures[self.computed]
        if self.wait_for_next and batch.sampler is not None and self.lane is not None:
            self.wait_for_next = False
            wait_for(lambda: self.lane is not None and self.lane.held == 2)
            self.prepared_meanwhile += 1


class TroubledEngine(CpuEngine):
    """An engine to which things happen."""

    trouble: Trouble

    def run(self, batch: Batch) -> SamplerOutput | None:
        self.trouble.before(batch)
        return super().run(batch)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@contextmanager
def executor(settings: RuntimeSettings, model: Path, trouble: Trouble) -> Iterator[None]:
    settings_of_model = ModelSettings(name=str(model), dtype="float32", max_model_tokens=256)
    config = ExecutorConfig(settings_of_model, 8, 64, 16, 64, 0.5, 1)

    def make() -> tuple[CpuEngine, LoadedModel]:
        engine, loaded = load(config)
        troubled = TroubledEngine(engine.decoder, engine.shape)
        troubled.trouble = trouble
        return troubled, loaded

    def lane() -> CpuModelRunner:
        trouble.lane = CpuModelRunner(make, actor.wake)
        return trouble.lane

    to = {Service.SCHEDULER: mailbox(settings, Service.SCHEDULER)}
    post = Mailbox(Service.EXECUTOR, mailbox(settings, Service.EXECUTOR), to, settings)
    actor = Actor(post, settings)
    telemetry = Telemetry(Service.EXECUTOR, post.incarnation, TelemetrySettings())
    shell = ExecutorShell(actor, telemetry, lane)
    thread = threading.Thread(target=actor.run, args=(shell,))
    thread.start()
    try:
        yield
    finally:
        actor.stop()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def outputs(folder: Path, model: Path, trouble: Trouble) -> list[list[int]]:
    """Four streams' tokens, with everything given back at the end."""
    asked = [
        Submission(
            Stream(number, 0), 0, tuple(range(5, 12 + 9 * number)), Sampling(1.0, seed=number, max_tokens=OUTPUT)
        )
        for number in range(4)
    ]
    with running_scheduler(folder, CoreSettings(max_batch_tokens=40)) as (settings, peers):
        peers[Service.EXECUTOR].mailbox.close()  # the real one takes its place
        admission, detokenizer = peers[Service.ADMISSION], peers[Service.DETOKENIZER]
        admission.join()
        detokenizer.join()
        with executor(settings, model, trouble):
            while not admission.wait_for(Capacity).ready:
                pass
            admission.send(Submit(tuple(asked)))
            received = read(detokenizer, len(asked))
            admission.send(Ended(tuple(each.stream for each in asked)))
            wait_for(lambda: not any(scheduler_state(settings)[key] for key in IDLE))
    return received


def read(detokenizer: Peer, streams: int) -> list[list[int]]:
    received: list[list[int]] = [[] for _ in range(streams)]
    ended = 0
    while ended < streams:
        for run in detokenizer.wait_for(Tokens).runs:
            ids = received[run.stream.request]
            assert run.start == len(ids), "a token was lost or repeated"
            assert run.detail == ""
            ids += run.ids
            ended += bool(run.end)
    return received


@pytest.mark.parametrize("error", [RuntimeError("a bad step"), MemoryError("full"), RuntimeError("out of memory")])
@pytest.mark.parametrize("step", [1, 2, 9])
def test_a_step_that_fails_is_computed_again_and_no_token_is_lost_or_changed(
    tmp_path: Path, model: Path, error: Exception, step: int
) -> None:
    undisturbed = outputs(tmp_path / "a", model, Trouble())
    assert [len(ids) for ids in undisturbed] == [OUTPUT] * 4
    trouble = Trouble(failures={step: error})
    assert outputs(tmp_path / "b", model, trouble) == undisturbed
    assert trouble.computed > step


def test_the_next_step_is_planned_and_prepared_while_one_is_computed(tmp_path: Path, model: Path) -> None:
    """The computation waits for the next batch to be laid out beside it: one after the other, it would wait for ever."""
    trouble = Trouble(wait_for_next=True)
    assert [len(ids) for ids in outputs(tmp_path, model, trouble)] == [OUTPUT] * 4
    assert trouble.prepared_meanwhile == 1
