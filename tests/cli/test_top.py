"""`noria top` draws the scheduler and the services for any size of terminal."""

import io

import msgspec
from rich.console import Console

from noria.cli.top.view import LiveReply, TopScreen
from noria.proto.base import Service
from noria.proto.lifecycle import Snapshot, State

BEFORE = {
    "serial": 3,
    "steps": [{"cells": [0, 70, 0, 9, 1]}],
    "moves": [{"request": 70, "class": "batch"}, {"request": 71, "class": "interactive"}],
    "queues": [{"class": "batch", "tenant": "acme", "running": 1, "waiting": 2, "preempted": 0, "tokens": 100}],
    "slots": {"count": 40, "used": 2},
    "blocks": [{"blank": 1, "used": 2, "shared": 1, "cached": 4}],
    "counters": {"output_tokens": 100, "tokens": 200, "prompt_tokens": 10, "hit_tokens": 5},
    "waiting": 2,
    "running": 1,
    "policy": "fair",
}
AFTER = {
    **BEFORE,
    "serial": 4,
    "steps": [{"cells": [0, 70, 0, 1, 0, 1, 71, 0, 1, 0]}],
    "queues": [
        {"class": "batch", "tenant": "acme", "running": 1, "waiting": 2, "preempted": 0, "tokens": 175},
        {"class": "interactive", "tenant": "", "running": 1, "waiting": 0, "preempted": 0, "tokens": 25},
    ],
    "counters": {"output_tokens": 150, "tokens": 300, "prompt_tokens": 10, "hit_tokens": 5},
}


def view(content: dict[str, object]) -> LiveReply:
    return msgspec.json.decode(msgspec.json.encode(content), type=LiveReply)


def drawn(screen: TopScreen, width: int = 120, height: int = 60) -> str:
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=False)
    console.print(screen.render(width, height))
    output = console.file
    assert isinstance(output, io.StringIO)
    return output.getvalue()


def updated_screen() -> TopScreen:
    screen = TopScreen()
    screen.update(view(BEFORE), 10.0)
    screen.update(view(AFTER), 10.5)
    return screen


def test_rates_shares_cache_and_the_step_chart_are_shown() -> None:
    text = drawn(updated_screen())
    assert "1/40 running  2 waiting  100 tokens/s  200 computed/s  cache 38% held  50% of prompts found in it" in text
    batch = next(line for line in text.splitlines() if line.startswith("batch"))
    assert batch.split()[:6] == ["batch", "acme", "1", "2", "0", "75%"]
    first, second = (next(line for line in text.splitlines() if line.startswith(f"  {slot} ")) for slot in (0, 1))
    assert first.rstrip().endswith("█━")
    assert second.rstrip().endswith(" ━")


def test_a_small_terminal_shows_some_slots_and_says_how_many_are_left_out() -> None:
    text = drawn(updated_screen(), width=60, height=30)
    assert "and 34 more slots" in text
    assert max(map(len, text.splitlines())) <= 60


def test_services_are_listed_and_a_scheduler_that_is_away_is_told() -> None:
    gone = updated_screen()
    who = msgspec.json.encode({"incarnation": "abc", "uptime_s": 7.2, "cpu_s": 1.0, "memory_bytes": 2 << 20})
    gone.services = {Service.ADMISSION: Snapshot("admission", 12, State.READY, who)}
    gone.update(None, 11.0)
    text = drawn(gone)
    assert "the scheduler does not answer" in text
    assert gone.since == "", "its next life is asked for everything"
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line.split()}
    assert rows["admission"] == ["admission", "ready", "12", "abc", "7", "s", "1.0", "s", "2", "MiB"]
    assert rows["executor"][1] == "silent"
