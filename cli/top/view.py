"""How `noria top` draws what it was told: tables, and a wheel of characters."""

from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from noria.proto.base import Service
from noria.proto.lifecycle import Snapshot

_COLUMNS_MAX: Final = 400
_ROWS_BESIDE: Final = 24  # lines that the tables take
_COLOURS: Final = {"interactive": "blue", "standard": "green", "batch": "magenta", "admin": "yellow"}
_MEASURES: Final = (
    ("queue", "in the queue"),
    ("first_token", "first token"),
    ("interval", "between tokens"),
    ("total", "to the end"),
)


class Step(msgspec.Struct, frozen=True):
    """A step; cells are slot, request, choice, tokens and whether they are of a prompt, one after the other."""

    cells: list[int]


class Queue(msgspec.Struct, frozen=True, rename={"traffic_class": "class"}):
    """A class and tenant."""

    traffic_class: str
    tenant: str
    running: int
    waiting: int
    preempted: int
    tokens: int


class Blocks(msgspec.Struct, frozen=True):
    """Cache blocks of one group."""

    blank: int = 0
    used: int = 0
    shared: int = 0
    cached: int = 0


class Counters(msgspec.Struct, frozen=True):
    """What the scheduler has counted."""

    output_tokens: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0
    resets: int = 0
    swaps_out: int = 0


class Slots(msgspec.Struct, frozen=True):
    """Places in a step."""

    count: int = 0
    used: int = 0


class Named(msgspec.Struct, frozen=True, rename={"traffic_class": "class"}):
    """Whose a request is."""

    request: int
    traffic_class: str = ""


class Told(msgspec.Struct, frozen=True):
    """The scheduler's answer."""

    serial: int
    steps: list[Step] = []
    moves: list[Named] = []
    requests: list[Named] = []
    queues: list[Queue] = []
    slots: Slots = Slots()
    blocks: list[Blocks] = []
    counters: Counters = Counters()
    waiting: int = 0
    running: int = 0
    policy: str = ""


class _Who(msgspec.Struct, frozen=True):
    incarnation: str = ""
    uptime_s: float = 0.0
    cpu_s: float = 0.0
    memory_bytes: int = 0


class Picture:
    """What was told last, and the steps of a screen's width."""

    def __init__(self) -> None:
        self.answered = False
        self.since = ""
        self.latency: Sequence[dict[str, Any]] = ()
        self.services: dict[Service, Snapshot] = {}
        self._told = Told(0)
        self._steps: deque[Step] = deque(maxlen=_COLUMNS_MAX)
        self._classes: dict[int, str] = {}
        self._before: tuple[float, Told] | None = None
        self._rates = (0.0, 0.0)
        self._shares: dict[tuple[str, str], float] = {}

    def take(self, told: Told | None, now_s: float) -> None:
        """Note what the scheduler did; None when it did not answer."""
        self.answered = told is not None
        if told is None:
            self.since = ""
            return
        for each in (*told.requests, *told.moves):
            if each.traffic_class:
                self._classes[each.request] = each.traffic_class
        while len(self._classes) > 10_000:
            del self._classes[next(iter(self._classes))]
        self._steps.extend(told.steps)
        if self._before is not None and now_s > self._before[0]:
            self._compare(self._before[1], told, now_s - self._before[0])
        self._before, self._told, self.since = (now_s, told), told, str(told.serial)

    def shown(self, width: int, height: int) -> RenderableType:
        """Everything, for a terminal of this size."""
        parts: list[RenderableType] = [self._head(), Text(), *self._wheel(width, max(4, height - _ROWS_BESIDE)), Text()]
        return Group(*parts, self._queues(), Text(), self._latencies(), Text(), self._services())

    def _compare(self, before: Told, told: Told, seconds: float) -> None:
        counts = told.counters
        self._rates = (
            max(0, counts.output_tokens - before.counters.output_tokens) / seconds,
            max(0, counts.tokens - before.counters.tokens) / seconds,
        )
        then = {(each.traffic_class, each.tenant): each.tokens for each in before.queues}
        got = {
            (each.traffic_class, each.tenant): max(0, each.tokens - then.get((each.traffic_class, each.tenant), 0))
            for each in told.queues
        }
        if total := sum(got.values()):
            self._shares = {whose: tokens / total for whose, tokens in got.items()}

    def _head(self) -> Text:
        told = self._told
        held = sum(each.used + each.shared for each in told.blocks)
        there = held + sum(each.cached + each.blank for each in told.blocks)
        hits = told.counters.hit_tokens / told.counters.prompt_tokens if told.counters.prompt_tokens else 0.0
        head = Text("noria ", "bold blue")
        if not self.answered:
            head.append(" the scheduler does not answer ", "bold white on red")
        head.append(f" {told.running}/{told.slots.count} running", "bold")
        head.append(f"  {told.waiting} waiting")
        head.append(f"  {self._rates[0]:,.0f} tokens/s", "bold")
        head.append(f"  {self._rates[1]:,.0f} computed/s")
        head.append(f"  cache {held / there:.0%} held" if there else "  no cache")
        head.append(f"  {hits:.0%} of prompts found in it")
        head.append(f"  {told.counters.resets + told.counters.swaps_out} preemptions  {told.policy}", "dim")
        return head

    def _wheel(self, width: int, rows: int) -> list[Text]:
        """Slots down, steps across, the newest at the right; as many slots as there is room for."""
        slots = min(self._told.slots.count, rows)
        columns = max(1, width - 5)
        steps = list(self._steps)[-columns:]
        grid = [[(" ", "")] * len(steps) for _ in range(slots)]
        for column, step in enumerate(steps):
            cells = step.cells
            for at in range(0, len(cells), 5):
                if cells[at] < slots:
                    colour = _COLOURS.get(self._classes.get(cells[at + 1], ""), "cyan")
                    grid[cells[at]][column] = ("█", colour) if cells[at + 4] else ("━", colour)
        lines = []
        for slot, row in enumerate(grid):
            line = Text(f"{slot:>3} ", "dim")
            line.append(" " * (columns - len(steps)))
            for character, style in row:
                line.append(character, style)
            lines.append(line)
        left = self._told.slots.count - slots
        if left > 0:
            lines.append(Text(f"    and {left} more slots", "dim"))
        return lines

    def _queues(self) -> Table:
        table = _table("class", "tenant", "#running", "#waiting", "#preempted", "#share", "")
        for each in sorted(self._told.queues, key=lambda one: (one.traffic_class, one.tenant)):
            share = self._shares.get((each.traffic_class, each.tenant), 0.0)
            colour = _COLOURS.get(each.traffic_class, "cyan")
            bar = Text("▄" * round(30 * share), colour)
            counts = (str(each.running), str(each.waiting), str(each.preempted))
            table.add_row(Text(each.traffic_class or "-", colour), each.tenant or "-", *counts, f"{share:.0%}", bar)
        return table

    def _latencies(self) -> Table:
        table = _table("latency, last minute", "#p50", "#p95", "#p99", "#count")
        for of, name in _MEASURES:
            row = next((each for each in self.latency if each["of"] == of and each["class"] == ""), None)
            if row is not None:
                table.add_row(name, *(_ms(row[part]) for part in ("p50", "p95", "p99")), str(row["count"]))
        return table

    def _services(self) -> Table:
        table = _table("service", "state", "#pid", "incarnation", "#up", "#processor", "#memory")
        for service in Service:
            answer = self.services.get(service)
            if answer is None:
                table.add_row(service.value, Text("silent", "red"), "-", "-", "-", "-", "-")
                continue
            who = msgspec.json.decode(answer.json, type=_Who | None) or _Who()
            state = Text(answer.state.value, "green" if answer.state.value == "ready" else "yellow")
            memory = f"{who.memory_bytes >> 20} MiB"
            table.add_row(
                service.value,
                state,
                str(answer.pid),
                who.incarnation,
                f"{who.uptime_s:.0f} s",
                f"{who.cpu_s:.1f} s",
                memory,
            )
        return table


def _table(*names: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in names:
        table.add_column(name.lstrip("#"), justify="right" if name.startswith("#") else "left", no_wrap=True)
    return table


def _ms(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1f} ms" if value < 1000 else f"{value / 1000:.2f} s"
