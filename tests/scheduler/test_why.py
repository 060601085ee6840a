"""Deadlines, the event log and `why`, through the scheduler's shell over real sockets."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fakes.desk import stream, submission
from fakes.executor import FakeExecutor, geometry
from fakes.neighbours import PATIENCE_S, PEERS, Peer, running_scheduler
from msgspec.structs import replace

from noria.cli.app import run
from noria.proto.base import End
from noria.proto.execution import StepPlan
from noria.proto.output import Tokens
from noria.proto.scheduling import Capacity, Submit
from noria.services.scheduler.core.interface.settings import CoreSettings
from noria.services.scheduler.observe.event_log import EventLog
from noria.shared.actor.inspect import explain_request
from noria.shared.config.config import RuntimeSettings


def asked(settings: RuntimeSettings, admission: Peer, request: str) -> list[str]:
    """What is told of a request, admission being played by the test."""
    with ThreadPoolExecutor(1) as asker:
        answer = asker.submit(explain_request, settings, request, PATIENCE_S)
        while not answer.done():
            admission.listen(20)
        return answer.result()


def test_a_request_that_is_out_of_time_ends_though_nothing_else_happens(tmp_path: Path) -> None:
    with running_scheduler(tmp_path, CoreSettings()) as (_, peers):
        admission, _, detokenizer = (peers[each] for each in PEERS)
        for peer in peers.values():
            peer.join()
        admission.send(Submit((replace(submission(1), ttl_first_ms=30),)))
        (run_of_tokens,) = detokenizer.wait_for(Tokens).runs
        assert (run_of_tokens.stream, run_of_tokens.ids, run_of_tokens.end) == (stream(1), (), End.DEADLINE)


def test_a_live_scheduler_and_its_log_tell_what_a_request_waited_for(tmp_path: Path) -> None:
    path, options = tmp_path / "events.log", CoreSettings(max_requests_per_batch=1, steps_in_flight=1)
    with running_scheduler(tmp_path, options, lambda view: EventLog(path, 1 << 20, options, 4, view)) as (
        settings,
        peers,
    ):
        admission, executor, detokenizer = (peers[each] for each in PEERS)
        for peer in peers.values():
            peer.join()
        fake = FakeExecutor(geometry())
        executor.send(fake.geometry)
        while not admission.wait_for(Capacity).ready:
            pass
        admission.send(Submit((submission(1, output=3), submission(2, output=3))))
        ended: list[int] = []
        while len(ended) < 2:
            fake.send(executor.wait_for(StepPlan))
            executor.send(fake.step())
            ended += [each.stream.request for each in detokenizer.wait_for(Tokens).runs if each.end]
        admission.tells["mine"] = {"numbers": [2]}
        lines = asked(settings, admission, "mine")
        assert asked(settings, admission, "2") == lines
        assert asked(settings, admission, "77") == asked(settings, admission, "another's") == []
    assert "request 2, choice 0" in lines[0]
    assert any("a slot" in line for line in lines)
    assert "ended: length, after 3 tokens" in lines[-1]
    assert run(["why", "2", "--log", str(path)]) == 0
    assert run(["why", "77", "--log", str(path)]) == 1
    assert run(["replay", str(path), "--policy", "fair"]) == 0
    assert run(["replay", str(path), "--policy", "none"]) == 2
