"""Admission killed under running streams, and every process at once: the answers are those of an undisturbed run."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from e2e.harness import Stack, stack, wait_until

from noria.client import AsyncClient, Patience

STREAMS, TOKENS, KILLS = 8, 500, 3
PATIENT = Patience(accept_s=60, answer_s=90, reconnect_s=90)


async def answer(client: AsyncClient, number: int, seen: list[int]) -> tuple[list[int], str]:
    """One stream's tokens and text as its reader got them; `seen` counts the tokens of all."""
    ids: list[int] = []
    text = ""
    generation = client.generate(f"Stream {number}", max_tokens=TOKENS, temperature=0.0, ignore_eos=True)
    async for delta in generation:
        assert (delta.start, delta.characters) == (len(ids), len(text)), "a hole, or something told twice"
        ids.extend(delta.token_ids)
        text += delta.text
        seen[0] += len(delta.token_ids)
    return ids, text


async def answers(running: Stack, disturb: Callable[[], None], times: int) -> list[tuple[list[int], str]]:
    """All streams' answers, disturbed each time another part of the tokens has come."""
    seen = [0]

    async def disturbance() -> None:
        for count in range(1, times + 1):
            while seen[0] < count * STREAMS * TOKENS // (times + 2):
                await asyncio.sleep(0.002)
            await asyncio.to_thread(disturb)

    async with AsyncClient(running.endpoint, patience=PATIENT) as client:
        streams = [answer(client, number, seen) for number in range(STREAMS)]
        got, _ = await asyncio.gather(asyncio.gather(*streams), disturbance())
    return got


def test_streams_go_on_as_if_nothing_had_been_killed(tiny_model: Path) -> None:
    with stack(str(tiny_model), "--dtype", "float32", environment={"OMP_NUM_THREADS": "1"}) as running:
        undisturbed = asyncio.run(answers(running, lambda: None, 0))
        assert all(len(ids) == TOKENS for ids, _ in undisturbed)

        def kill_admission() -> None:
            before = running.pids()["admission"]
            os.kill(before, signal.SIGKILL)
            wait_until(lambda: running.pids().get("admission", before) != before, 30, "a new admission")

        assert asyncio.run(answers(running, kill_admission, KILLS)) == undisturbed

        def kill_all() -> None:
            pids = running.pids()
            for pid in (pids["supervisor"], *(pid for name, pid in pids.items() if name != "supervisor")):
                os.kill(pid, signal.SIGKILL)
            running.process.wait(10)
            with running.log_path.open("ab") as log:
                running.process = subprocess.Popen(
                    running.command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=running.environment,
                    start_new_session=True,
                )  # fmt: skip

        assert asyncio.run(answers(running, kill_all, 1)) == undisturbed
        running.wait_ready()
        running.wait_idle()
        totals = running.state()["admission"]["totals"]
        assert totals["accepted"] == totals["length"] == 3 * STREAMS
        assert "Traceback" not in running.log()
