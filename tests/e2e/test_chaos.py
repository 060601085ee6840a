"""A short run of what `make chaos` does: every answer comes whole while processes are killed."""

import asyncio
from pathlib import Path

from chaos.chaos_run import ChaosSettings, run_chaos
from chaos.kill_plan import SERVICES, KillAction


def test_every_answer_comes_whole_while_each_service_two_the_supervisor_and_all_are_killed(tiny_model: Path) -> None:
    chosen = (
        *(KillAction("kill", (name,), 0.8, mid_answer=name == "executor") for name in SERVICES),
        KillAction("kill", ("scheduler", "detokenizer"), 0.8),
        KillAction("supervisor", (), 0.8),
        KillAction("all", (), 0.8),
    )
    found = asyncio.run(run_chaos(ChaosSettings(str(tiny_model), streams=12, http=4, tokens=(100, 300), chosen=chosen)))
    assert found.hits == len(chosen)
    assert not found.failures, found.table()
    assert found.recoveries["executor"].streams > 0
