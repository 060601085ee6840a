"""A short run of what `make chaos` does: every answer comes whole while processes are killed."""

import asyncio
from pathlib import Path

from chaos.plan import SERVICES, Blow
from chaos.run import Wish, run


def test_every_answer_comes_whole_while_each_service_two_the_supervisor_and_all_are_killed(tiny_model: Path) -> None:
    chosen = (
        *(Blow("kill", (name,), 0.8, midway=name == "executor") for name in SERVICES),
        Blow("kill", ("scheduler", "detokenizer"), 0.8),
        Blow("supervisor", (), 0.8),
        Blow("all", (), 0.8),
    )
    found = asyncio.run(run(Wish(str(tiny_model), streams=12, http=4, tokens=(100, 300), chosen=chosen)))
    assert found.hits == len(chosen)
    assert not found.failures, found.table()
    assert found.recoveries["executor"].streams > 0
