"""One chaos run: starts a stack, finds the expected answers undisturbed, then repeats them while processes are killed."""

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

from chaos.chaos_report import ChaosReport, make_report
from chaos.kill_plan import SERVICES, KillAction, draw_kills, draw_prompts
from chaos.killer import ProcessKiller
from chaos.readers import Expected, StreamReaders
from e2e.harness import Stack

_QUESTIONS = 24
_LAST_S = 150.0
# Short timeouts, so that hangs are found soon; and many kills from outside must not count as a crash loop.
_SETTINGS = {
    "NORIA_RUNTIME_HANG_TIMEOUT_S": "3",
    "NORIA_RUNTIME_PEER_TIMEOUT_S": "5",
    "NORIA_RUNTIME_CRASH_LOOP_DEATHS": "100",
    "NORIA_RUNTIME_RESTART_PAUSE_S": "0.1",
    "OMP_NUM_THREADS": "1",
}


@dataclass(frozen=True)
class ChaosSettings:
    """Settings of one chaos run. chosen: these kills instead of so many drawn from the seed."""

    model: str
    seed: int = 1
    kills: int = 100
    streams: int = 32
    http: int = 8
    gap_s: tuple[float, float] = (1.0, 2.0)
    victims: tuple[str, ...] = SERVICES
    alone: bool = False
    tokens: tuple[int, int] = (200, 800)
    limit_s: float = 3600.0
    log: Path | None = None
    chosen: tuple[KillAction, ...] = ()


async def run_chaos(settings: ChaosSettings) -> ChaosReport:
    """Run against a new stack, which is removed afterwards, and return the report."""
    arguments = (
        "--dtype",
        "float32",
        "--max-requests-per-batch",
        str(max(64, settings.streams)),
        "--log-level",
        "info",
    )
    stack = Stack(settings.model, *arguments, environment=_SETTINGS)
    try:
        await asyncio.to_thread(stack.wait_ready)
        return await _run_with_kills(settings, stack)
    finally:
        if settings.log is not None:
            settings.log.write_text(stack.log())
        await asyncio.to_thread(stack.discard)


async def _run_with_kills(settings: ChaosSettings, stack: Stack) -> ChaosReport:
    prompts = draw_prompts(settings.seed, _QUESTIONS, settings.tokens)
    quiet = StreamReaders(stack.endpoint, stack.url, prompts, {})
    left = iter(range(_QUESTIONS))
    await quiet.read_zeromq(_QUESTIONS, lambda: next(left, None) is not None)
    assert not any(each.failure for each in quiet.answers), [each.failure for each in quiet.answers]
    expected: Expected = {each.question: (tuple(each.ids), each.text) for each in quiet.answers}
    readers = StreamReaders(stack.endpoint, stack.url, prompts, expected)
    killer = ProcessKiller(stack, readers.answers_under_way)
    killing = True
    reading = asyncio.gather(
        readers.read_zeromq(settings.streams - settings.http, lambda: killing),
        readers.read_http(settings.http, lambda: killing),
    )
    drawn = draw_kills(settings.seed, settings.kills, settings.gap_s, settings.victims, alone=settings.alone)
    await killer.run(settings.chosen or drawn, settings.limit_s)
    killing = False
    try:
        await asyncio.wait_for(reading, _LAST_S)
    except TimeoutError:
        for answer in readers.answers:
            if not answer.ended_s:
                answer.ended_s = time.time()
                answer.failure = answer.failure or f"never ended: {len(answer.ids)} ids, {len(answer.text)} characters"
    if killer.failure:
        readers.answers[0].failure = killer.failure
    return make_report(settings.seed, settings.streams, readers.answers, killer.hits, readers.refusals, stack.log())
