"""The screen of `noria top`: tables of queues, latencies and services, and a chart of the slots of each step."""

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
_TABLE_ROWS: Final = 24  # lines that the tables take
_COLOURS: Final = {"interactive": "blue", "standard": "green", "batch": "magenta", "admin": "yellow"}
_MEASURES: Final = (
    ("queue", "in the queue"),
    ("first_token", "first token"),
    ("interval", "between tokens"),
    ("total", "to the end"),
)


class StepView(msgspec.Struct, frozen=True):
    """One step. cells: five numbers for each slot: slot, request, choice, tokens, and 1 where they are of a prompt."""

    cells: list[int]


class TenantLoad(msgspec.Struct, frozen=True, rename={"traffic_class": "class"}):
    """Counts of one traffic class and tenant: its requests by state, and tokens computed so far."""

    traffic_class: str
    tenant: str
    running: int
    waiting: int
    preempted: int
    tokens: int


class BlockCounts(msgspec.Struct, frozen=True):
    """Numbers of cache blocks of one cache group, by state."""

    blank: int = 0
    used: int = 0
    shared: int = 0
    cached: int = 0


class CountersView(msgspec.Struct, frozen=True):
    """Counters of the scheduler since it started."""

    output_tokens: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0
    resets: int = 0
    swaps_out: int = 0


class SlotView(msgspec.Struct, frozen=True):
    """Number of slots, and how many of them hold a request."""

    count: int = 0
    used: int = 0


class RequestClass(msgspec.Struct, frozen=True, rename={"traffic_class": "class"}):
    """The traffic class of a request; empty where it did not change."""

    request: int
    traffic_class: str = ""


class LiveReply(msgspec.Struct, frozen=True):
    """The scheduler's answer to a live query: steps since the serial asked for, and the present state."""

    serial: int
    steps: list[StepView] = []
    moves: list[RequestClass] = []
    requests: list[RequestClass] = []
    queues: list[TenantLoad] = []
    slots: SlotView = SlotView()
    blocks: list[BlockCounts] = []
    counters: CountersView = CountersView()
    waiting: int = 0
    running: int = 0
    policy: str = ""


class _ServiceIdentity(msgspec.Struct, frozen=True):
    """Incarnation, age and resource use of a service, from its snapshot."""

    incarnation: str = ""
    uptime_s: float = 0.0
    cpu_s: float = 0.0
    memory_bytes: int = 0


class TopScreen:
    """The latest state of the stack, and as many steps as a screen is wide."""

    def __init__(self) -> None:
        self.answered = False
        self.since = ""
        self.latency: Sequence[dict[str, Any]] = ()
        self.services: dict[Service, Snapshot] = {}
        self._view = LiveReply(0)
        self._steps: deque[StepView] = deque(maxlen=_COLUMNS_MAX)
        self._classes: dict[int, str] = {}
        self._previous: tuple[float, LiveReply] | None = None
        self._rates = (0.0, 0.0)
        self._shares: dict[tuple[str, str], float] = {}

    def update(self, view: LiveReply | None, now_s: float) -> None:
        """Store the scheduler's answer; None when it did not answer."""
        self.answered = view is not None
        if view is None:
            self.since = ""
            return
        for each in (*view.requests, *view.moves):
            if each.traffic_class:
                self._classes[each.request] = each.traffic_class
        while len(self._classes) > 10_000:
            del self._classes[next(iter(self._classes))]
        self._steps.extend(view.steps)
        if self._previous is not None and now_s > self._previous[0]:
            self._update_rates(self._previous[1], view, now_s - self._previous[0])
        self._previous, self._view, self.since = (now_s, view), view, str(view.serial)

    def render(self, width: int, height: int) -> RenderableType:
        """Return the whole screen for a terminal of this size."""
        parts: list[RenderableType] = [
            self._header(),
            Text(),
            *self._step_chart(width, max(4, height - _TABLE_ROWS)),
            Text(),
        ]
        return Group(*parts, self._queue_table(), Text(), self._latency_table(), Text(), self._service_table())

    def _update_rates(self, before: LiveReply, view: LiveReply, seconds: float) -> None:
        counts = view.counters
        self._rates = (
            max(0, counts.output_tokens - before.counters.output_tokens) / seconds,
            max(0, counts.tokens - before.counters.tokens) / seconds,
        )
        then = {(each.traffic_class, each.tenant): each.tokens for each in before.queues}
        got = {
            (each.traffic_class, each.tenant): max(0, each.tokens - then.get((each.traffic_class, each.tenant), 0))
            for each in view.queues
        }
        if total := sum(got.values()):
            self._shares = {whose: tokens / total for whose, tokens in got.items()}

    def _header(self) -> Text:
        view = self._view
        held = sum(each.used + each.shared for each in view.blocks)
        there = held + sum(each.cached + each.blank for each in view.blocks)
        hits = view.counters.hit_tokens / view.counters.prompt_tokens if view.counters.prompt_tokens else 0.0
        head = Text("noria ", "bold blue")
        if not self.answered:
            head.append(" the scheduler does not answer ", "bold white on red")
        head.append(f" {view.running}/{view.slots.count} running", "bold")
        head.append(f"  {view.waiting} waiting")
        head.append(f"  {self._rates[0]:,.0f} tokens/s", "bold")
        head.append(f"  {self._rates[1]:,.0f} computed/s")
        head.append(f"  cache {held / there:.0%} held" if there else "  no cache")
        head.append(f"  {hits:.0%} of prompts found in it")
        head.append(f"  {view.counters.resets + view.counters.swaps_out} preemptions  {view.policy}", "dim")
        return head

    def _step_chart(self, width: int, rows: int) -> list[Text]:
        """Return the chart: a line for each slot, a column for each step, the newest at the right; slots beyond `rows` are counted."""
        slots = min(self._view.slots.count, rows)
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
        left = self._view.slots.count - slots
        if left > 0:
            lines.append(Text(f"    and {left} more slots", "dim"))
        return lines

    def _queue_table(self) -> Table:
        table = _new_table("class", "tenant", "#running", "#waiting", "#preempted", "#share", "")
        for each in sorted(self._view.queues, key=lambda one: (one.traffic_class, one.tenant)):
            share = self._shares.get((each.traffic_class, each.tenant), 0.0)
            colour = _COLOURS.get(each.traffic_class, "cyan")
            bar = Text("▄" * round(30 * share), colour)
            counts = (str(each.running), str(each.waiting), str(each.preempted))
            table.add_row(Text(each.traffic_class or "-", colour), each.tenant or "-", *counts, f"{share:.0%}", bar)
        return table

    def _latency_table(self) -> Table:
        table = _new_table("latency, last minute", "#p50", "#p95", "#p99", "#count")
        for of, name in _MEASURES:
            row = next((each for each in self.latency if each["of"] == of and each["class"] == ""), None)
            if row is not None:
                table.add_row(name, *(_ms(row[part]) for part in ("p50", "p95", "p99")), str(row["count"]))
        return table

    def _service_table(self) -> Table:
        table = _new_table("service", "state", "#pid", "incarnation", "#up", "#processor", "#memory")
        for service in Service:
            answer = self.services.get(service)
            if answer is None:
                table.add_row(service.value, Text("silent", "red"), "-", "-", "-", "-", "-")
                continue
            who = msgspec.json.decode(answer.json, type=_ServiceIdentity | None) or _ServiceIdentity()
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


def _new_table(*names: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in names:
        table.add_column(name.lstrip("#"), justify="right" if name.startswith("#") else "left", no_wrap=True)
    return table


def _ms(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1f} ms" if value < 1000 else f"{value / 1000:.2f} s"
