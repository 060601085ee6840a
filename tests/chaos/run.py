"""One run: a stack, what it answers when nobody disturbs it, then the same under blows."""

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

from chaos.figures import Report, report
from chaos.killer import Killer
from chaos.plan import SERVICES, Blow, blows, questions
from chaos.readers import Crowd, Expected
from e2e.harness import Stack

_QUESTIONS = 24
_LAST_S = 150.0
# Impatient, so that hangs are found soon; and so many deaths from outside are no crash loop.
_SETTINGS = {
    "NORIA_RUNTIME_HANG_TIMEOUT_S": "3",
    "NORIA_RUNTIME_PEER_TIMEOUT_S": "5",
    "NORIA_RUNTIME_CRASH_LOOP_DEATHS": "100",
    "NORIA_RUNTIME_RESTART_PAUSE_S": "0.1",
    "OMP_NUM_THREADS": "1",
}


@dataclass(frozen=True)
class Wish:
    """What to do to which stack. chosen: these blows instead of so many drawn from the seed."""

    model: str
    seed: int = 1
    blows: int = 100
    streams: int = 32
    http: int = 8
    gap_s: tuple[float, float] = (1.0, 2.0)
    victims: tuple[str, ...] = SERVICES
    alone: bool = False
    tokens: tuple[int, int] = (200, 800)
    limit_s: float = 3600.0
    log: Path | None = None
    chosen: tuple[Blow, ...] = ()


async def run(wish: Wish) -> Report:
    """Run it; the stack is gone afterwards."""
    arguments = ("--dtype", "float32", "--max-requests-per-batch", str(max(64, wish.streams)), "--log-level", "info")
    stack = Stack(wish.model, *arguments, environment=_SETTINGS)
    try:
        await asyncio.to_thread(stack.wait_ready)
        return await _under_blows(wish, stack)
    finally:
        if wish.log is not None:
            wish.log.write_text(stack.log())
        await asyncio.to_thread(stack.discard)


async def _under_blows(wish: Wish, stack: Stack) -> Report:
    asked = questions(wish.seed, _QUESTIONS, wish.tokens)
    quiet = Crowd(stack.endpoint, stack.url, asked, {})
    left = iter(range(_QUESTIONS))
    await quiet.read_zeromq(_QUESTIONS, lambda: next(left, None) is not None)
    assert not any(each.failure for each in quiet.answers), [each.failure for each in quiet.answers]
    expected: Expected = {each.question: (tuple(each.ids), each.text) for each in quiet.answers}
    crowd = Crowd(stack.endpoint, stack.url, asked, expected)
    killer = Killer(stack, crowd.under_way)
    striking = True
    readers = asyncio.gather(
        crowd.read_zeromq(wish.streams - wish.http, lambda: striking),
        crowd.read_http(wish.http, lambda: striking),
    )
    drawn = blows(wish.seed, wish.blows, wish.gap_s, wish.victims, alone=wish.alone)
    await killer.strike(wish.chosen or drawn, wish.limit_s)
    striking = False
    try:
        await asyncio.wait_for(readers, _LAST_S)
    except TimeoutError:
        for answer in crowd.answers:
            if not answer.ended_s:
                answer.ended_s = time.time()
                answer.failure = answer.failure or f"never ended: {len(answer.ids)} ids, {len(answer.text)} characters"
    if killer.failure:
        crowd.answers[0].failure = killer.failure
    return report(wish.seed, wish.streams, crowd.answers, killer.hits, crowd.refusals, stack.log())
