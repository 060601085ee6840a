"""`noria top` against a scheduler's shell over real sockets; the other services are away."""

from pathlib import Path

import pytest
from fakes.desk import submission
from fakes.executor import FakeExecutor, geometry
from fakes.neighbours import PEERS, running_scheduler

from noria.cli.app import run
from noria.proto.execution import StepPlan
from noria.proto.scheduling import Capacity, Submit
from noria.services.scheduler.core.interface.settings import CoreSettings


def test_top_prints_once_what_a_scheduler_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running_scheduler(tmp_path, CoreSettings(max_requests_per_batch=4)) as (settings, peers):
        admission, executor, _ = (peers[each] for each in PEERS)
        for peer in peers.values():
            peer.join()
        executor.send(FakeExecutor(geometry()).geometry)
        while not admission.wait_for(Capacity).ready:
            pass
        admission.send(Submit((submission(1, output=3),)))
        executor.wait_for(StepPlan)
        assert run(["top", "--once", "--interval", "0.1", "--runtime-dir", settings.dir]) == 0
    shown = capsys.readouterr().out
    assert "1/4 running  0 waiting" in shown
    rows = {line.split()[0]: line.split()[1] for line in shown.splitlines() if len(line.split()) > 1}
    assert rows["executor"] == "silent"


def test_top_says_what_to_look_at_when_nobody_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["top", "--once", "--runtime-dir", str(tmp_path)]) == 2
    assert "is the stack up" in capsys.readouterr().err
