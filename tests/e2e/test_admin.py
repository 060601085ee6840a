"""The isolated pool on a whole stack that is full of everything else, told by the scheduler's own record."""

import asyncio
import contextlib
from pathlib import Path

from e2e.harness import LENIENT, Stack, stack, wait_until

from noria.cli.commands.keys import hash_key
from noria.client import AsyncClient
from noria.proto.base import Stream
from noria.proto.scheduling import Submit
from noria.services.scheduler.core.interface.events import SchedulerEvent
from noria.services.scheduler.simulation.recording import RecordedRun

SLOTS = 6
CROWD = 6 * SLOTS
OTHERS = ("interactive", "standard", "batch")
CONFIG = f"""
[tenants.crowd]
keys = ["{hash_key("crowd")}"]
classes = {list(OTHERS)}
[tenants.root]
keys = ["{hash_key("root")}"]
classes = ["admin", "standard"]
"""


async def crowd(client: AsyncClient, number: int) -> None:
    """One long request after another, in one of the other classes."""
    while True:
        await client.complete(
            token_ids=[5 + number] * 200, max_tokens=200, ignore_eos=True, traffic_class=OTHERS[number % len(OTHERS)]
        )


def crowded(running: Stack) -> bool:
    """Whether everybody of the crowd is in the schedule: many more than can run, in each class."""
    scheduler = running.of("scheduler")
    return bool(scheduler["waiting"] + scheduler["running"] >= CROWD)


async def operate(running: Stack, asks: int) -> None:
    """Fill the stack, then ask as an operator, again and again; it stands still until it is full and has been asked."""
    endpoint = running.endpoint
    async with AsyncClient(endpoint, credential="crowd") as theirs, AsyncClient(endpoint, credential="root") as mine:
        busy = [asyncio.create_task(crowd(theirs, number)) for number in range(CROWD)]
        while asks:
            with running.held():
                await asyncio.to_thread(wait_until, lambda: crowded(running), 60, "many wait")
                if (
                    running.of("scheduler")["running"] < SLOTS - 1
                ):  # one has just ended, and who follows is not planned yet
                    continue
                asked = mine.generate(token_ids=[9, asks], max_tokens=2, ignore_eos=True, traffic_class="admin")
                await asked.accepted()
            assert len((await asked.result()).choices[0].token_ids) == 2
            asks -= 1
        for each in busy:
            each.cancel()
        for each in busy:
            with contextlib.suppress(asyncio.CancelledError):
                await each


def first_plans(log: Path) -> list[tuple[bool, bool]]:
    """Of each request in `admin`: whether all other slots were held and somebody of each class waited when it came, and
    whether it is in the first plan after that."""
    found: list[tuple[bool, bool]] = []
    come: dict[Stream, bool] = {}
    for core, now_ns, body, plans in RecordedRun(log).replay_events():
        if isinstance(body, Submit):
            board = core.state
            held = len(board.prefilling) + len(board.decoding) >= SLOTS - 1
            full = held and all(board.waiting.queue(name).requests for name in OTHERS)
            come |= {each.stream: full for each in body.submissions if each.traffic_class == "admin"}
        if body is not None:
            core.apply(SchedulerEvent(now_ns, body))
        elif plans and come:
            filled = {each.stream for each in plans[0].fill}
            found += [(full, each in filled) for each, full in come.items()]
            come.clear()
    return found


def test_an_admin_request_is_in_the_first_plan_after_its_arrival_on_a_stack_that_is_full_in_every_other_class(
    tiny_model: Path, tmp_path: Path
) -> None:
    config, log = tmp_path / "noria.toml", tmp_path / "events.log"
    config.write_text(CONFIG)
    flags = ["--config", str(config), "--max-num-seqs", str(SLOTS), "--event-log", str(log), "--dtype", "float32"]
    with stack(str(tiny_model), *flags, environment=LENIENT, api_key="root") as running:
        asyncio.run(operate(running, 20))
    plans = first_plans(log)
    assert len(plans) == 20
    assert all(held for held, _ in plans), "the stack was full"
    assert all(first for _, first in plans)
