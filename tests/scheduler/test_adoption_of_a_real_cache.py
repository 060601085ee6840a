"""The scheduler's process is killed beside a real executor: the next one goes on with what the cache holds.

The test plays admission and the detokenizer; the scheduler is a process of its own, so that it can be killed.
"""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from fakes.neighbours import PATIENCE_S, Peer, scheduler_state
from fakes.peers import wait_for
from fakes.tiny_model import build_tiny_model
from msgspec.structs import replace

from noria.proto.base import Ended, Service, Stream
from noria.proto.output import Tokens
from noria.proto.sampling import Sampling
from noria.proto.scheduling import Submission, Submit
from noria.services.executor.config import ExecutorConfig
from noria.services.executor.cpu.cpu_runner import CpuModelRunner
from noria.services.executor.cpu.engine import CpuEngine
from noria.services.executor.cpu.loading import load
from noria.services.executor.plan.batch import Batch
from noria.services.executor.plan.sampling_metadata import SamplerOutput
from noria.services.executor.runner.loaded_model import LoadedModel
from noria.services.executor.service import ExecutorShell
from noria.shared.actor.actor import Actor
from noria.shared.actor.endpoints import mailbox, prepare_runtime_dir
from noria.shared.actor.mailbox import Mailbox
from noria.shared.config.config import Config, ModelSettings, RuntimeSettings, SchedulerSettings, TelemetrySettings
from noria.shared.telemetry.telemetry import Telemetry

OUTPUT = 40
IDLE = ("waiting", "running", "finished", "blocks_used", "slots_used", "in_flight")


@dataclass(eq=False)
class Computed:
    """What the executor has computed: query tokens, and whether it may go on to the next step."""

    tokens: int = 0
    gate: threading.Event = field(default_factory=threading.Event)


class CountingEngine(CpuEngine):
    """An engine that counts, and waits at its gate before each step."""

    computed: Computed

    def run(self, batch: Batch) -> SamplerOutput | None:
        assert self.computed.gate.wait(PATIENCE_S)
        self.computed.tokens += len(batch.token_ids)
        return super().run(batch)


@contextmanager
def executor(settings: RuntimeSettings, model: Path, computed: Computed) -> Iterator[ExecutorShell]:
    config = ExecutorConfig(
        ModelSettings(name=str(model), dtype="float32", max_model_tokens=256), 8, 64, 16, 64, 0.5, 1
    )

    def make() -> tuple[CpuEngine, LoadedModel]:
        engine, loaded = load(config)
        counting = CountingEngine(engine.decoder, engine.shape)
        counting.computed = computed
        return counting, loaded

    to = {Service.SCHEDULER: mailbox(settings, Service.SCHEDULER)}
    post = Mailbox(Service.EXECUTOR, mailbox(settings, Service.EXECUTOR), to, settings)
    actor = Actor(post, settings)
    telemetry = Telemetry(Service.EXECUTOR, post.incarnation, TelemetrySettings())
    shell = ExecutorShell(actor, telemetry, lambda: CpuModelRunner(make, actor.wake))
    thread = threading.Thread(target=actor.run, args=(shell,))
    thread.start()
    try:
        yield shell
    finally:
        computed.gate.set()
        actor.stop()
        thread.join(PATIENCE_S)


@contextmanager
def scheduler(folder: Path, settings: RuntimeSettings) -> Iterator[subprocess.Popen[bytes]]:
    """The scheduler's process; killed at the end, if it still lives."""
    path = folder / "noria.json"
    # Each token is told at once, so that streams are as far as their readers when the process is killed.
    scheduling = SchedulerSettings(max_batch_tokens=40, tokens_interval_ms=0)
    path.write_bytes(msgspec.json.encode(Config(runtime=settings, scheduler=scheduling)))
    process = subprocess.Popen([sys.executable, "-m", "noria.services.scheduler", "--config", str(path)])
    try:
        yield process
    finally:
        process.kill()
        process.wait(PATIENCE_S)


class Audience:
    """Admission and the detokenizer, as far as the scheduler sees them. received: ids by stream."""

    def __init__(self, settings: RuntimeSettings, asked: list[Submission]) -> None:
        self.admission, self.detokenizer = Peer(Service.ADMISSION, settings), Peer(Service.DETOKENIZER, settings)
        self.asked = asked
        self.received: dict[Stream, list[int]] = {each.stream: [] for each in asked}
        self.ended: set[Stream] = set()

    def meet(self, *, lag: int = 0) -> None:
        """Greet a scheduler and submit everything; the ledger lacks the last tokens."""
        for peer in (self.admission, self.detokenizer):
            # What the last one said and was not read yet must not be taken for the next one's greeting.
            peer.mailbox.links[Service.SCHEDULER].follow_incarnation(0)
            peer.heard.clear()
            peer.join()
        known = {stream: ids[: max(0, len(ids) - lag)] for stream, ids in self.received.items()}
        self.received = known
        again = tuple(replace(each, output_ids=tuple(known[each.stream])) for each in self.asked)
        self.admission.send(Submit(again, complete=True))

    def read(self, tokens: int) -> None:
        """Until every stream has so many ids."""
        while any(len(ids) < tokens for ids in self.received.values()):
            for run in self.detokenizer.wait_for(Tokens).runs:
                ids = self.received[run.stream]
                assert run.start <= len(ids), "a token was lost"
                assert run.ids[: len(ids) - run.start] == tuple(ids[run.start : run.start + len(run.ids)]), "changed"
                ids += run.ids[len(ids) - run.start :]
                if run.end:
                    assert run.detail == ""
                    self.ended.add(run.stream)

    def close(self) -> None:
        self.admission.mailbox.close()
        self.detokenizer.mailbox.close()


def outputs(folder: Path, model: Path, asked: list[Submission], kills: int) -> dict[Stream, list[int]]:
    """What the streams generate while the scheduler is killed so often."""
    folder.mkdir()
    settings = RuntimeSettings(dir=str(folder / "run"))
    prepare_runtime_dir(settings)
    audience, computed = Audience(settings, asked), Computed()
    computed.gate.set()
    with executor(settings, model, computed) as shell:
        for kill in range(kills):
            with scheduler(folder, settings):
                audience.meet(lag=kill)
                audience.read(4 + 8 * kill)
                computed.gate.clear()
                # Both input buffers are filled when the scheduler dies.
                wait_for(lambda: shell.snapshot()["queued_plans"] == 2)
            computed.gate.set()
        with scheduler(folder, settings):
            audience.meet(lag=2)
            audience.read(OUTPUT)
            counters = scheduler_state(settings)["counters"]
            audience.admission.send(Ended(tuple(audience.received)))
            wait_for(lambda: not any(scheduler_state(settings)[key] for key in IDLE))
    audience.close()
    assert isinstance(counters, dict)
    assert (counters["adopted"], counters["recomputed_tokens"]) == (len(asked) if kills else 0, 0)
    # Every position once, and the last token of each stream not at all.
    assert computed.tokens == sum(len(each.prompt_ids) + OUTPUT - 1 for each in asked)
    assert audience.ended == set(audience.received)
    return audience.received


@pytest.mark.parametrize("window", [None, 24])
def test_no_prefill_is_repeated_and_no_token_changes_when_the_scheduler_is_killed(
    tmp_path: Path, window: int | None
) -> None:
    model = build_tiny_model(tmp_path / "tiny", window=window)
    asked = [
        Submission(
            stream=Stream(number, 0),
            attempt=0,
            prompt_ids=tuple(range(5 + number, 5 + number + length)),
            sampling=Sampling(1.0, seed=number, max_tokens=OUTPUT, ignore_eos=True, frequency_penalty=0.3),
        )
        for number, length in enumerate((30, 75, 41, 12))
    ]
    assert outputs(tmp_path / "a", model, asked, 0) == outputs(tmp_path / "b", model, asked, 3)
