"""Reports medians and ranges of all rounds, ratios against other engines, and goals, as JSON, table and plot."""

import datetime
import os
import platform
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
from engines import Engine
from measures import FIGURES, Figure, Measure, read


class FigureSpread(msgspec.Struct, frozen=True):
    """Median, range and values of one figure over all rounds."""

    median: float
    least: float
    most: float
    rounds: tuple[float, ...]


class PeerGoal(msgspec.Struct, frozen=True):
    """One goal and its result. ratio: of medians; rounds: the ratio of each round."""

    title: str
    against: str
    ratio: float
    rounds: tuple[float, ...]
    wanted: str
    met: bool


class PeerReport(msgspec.Struct, frozen=True):
    """The whole report."""

    date: str
    processor: str
    cores: int
    rate: float | None
    settings: dict[str, str]
    start_s: dict[str, float]
    memory_gb: dict[str, float]
    figures: dict[str, dict[str, FigureSpread]]
    goals: tuple[PeerGoal, ...]


class _ServerNotes(msgspec.Struct):
    start_s: dict[str, list[float]] = msgspec.field(default_factory=dict)
    memory_gb: dict[str, list[float]] = msgspec.field(default_factory=dict)


class ServerNotes:
    """Start times and memory of servers, kept in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.noted = msgspec.json.decode(path.read_bytes(), type=_ServerNotes) if path.exists() else _ServerNotes()

    def started(self, name: str, seconds: float) -> None:
        """Record that a server started in so many seconds."""
        self.noted.start_s.setdefault(name, []).append(seconds)
        self._path.write_bytes(msgspec.json.encode(self.noted))

    def weighed(self, name: str, gigabytes: float) -> None:
        """Record a server's memory after its measures."""
        self.noted.memory_gb.setdefault(name, []).append(gigabytes)
        self._path.write_bytes(msgspec.json.encode(self.noted))


class _GoalDefinition(msgspec.Struct, frozen=True):
    """A goal: Noria against the best of `peers`, at least (more) or at most (not more) `bound`."""

    title: str
    measure: str
    figure: str
    ours: str
    peers: tuple[str, ...]
    bound: float


_BF16: Final = ("vllm-bf16", "openvino-bf16", "llama.cpp-bf16")
_INT8: Final = ("openvino-int8", "llama.cpp-q8_0")
_GOALS: Final = (
    _GoalDefinition("mixed, output tok/s, bf16", "mixed", "output", "noria-bf16", _BF16, 1.4),
    _GoalDefinition("mixed, output tok/s, int8", "mixed", "output", "noria-int8", _INT8, 1.5),
    _GoalDefinition("one stream, decode tok/s, bf16", "single", "decode", "noria-bf16", ("llama.cpp-bf16",), 1.05),
    _GoalDefinition("one stream, decode tok/s, int8", "single", "decode", "noria-int8", ("llama.cpp-q8_0",), 1.15),
    _GoalDefinition("shared prefix, total tok/s, bf16", "shared", "total", "noria-bf16", ("vllm-bf16",), 1.5),
    _GoalDefinition("half load, first token p50, bf16", "half", "ttft_p50", "noria-bf16", _BF16, 0.9),
    _GoalDefinition("half load, first token p99, bf16", "half", "ttft_p99", "noria-bf16", _BF16, 0.9),
    _GoalDefinition("half load, first token p50, int8", "half", "ttft_p50", "noria-int8", _INT8, 0.9),
    _GoalDefinition("half load, first token p99, int8", "half", "ttft_p99", "noria-int8", _INT8, 0.9),
)
_ITL_SPREAD_MAX: Final = 4.0


def write_report(
    out: Path, raw: Path, engines: Sequence[Engine], measures: Sequence[Measure], notes: ServerNotes
) -> None:
    """Write report.json, report.md and report.svg into `out`, and print the table."""
    figures = {
        f"{figure.measure}.{figure.name}": found
        for figure in FIGURES
        if figure.measure in {each.name for each in measures} and (found := _figure(figure, raw, engines))
    }
    rate = raw / "rate"
    report = PeerReport(
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)),
        rate=float(rate.read_text()) if rate.exists() else None,
        settings={each.name: each.settings for each in engines},
        start_s={name: statistics.median(values) for name, values in notes.noted.start_s.items()},
        memory_gb={name: statistics.median(values) for name, values in notes.noted.memory_gb.items()},
        figures=figures,
        goals=tuple(_goals(figures)),
    )
    (out / "report.json").write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1))
    text = _markdown(report, engines)
    (out / "report.md").write_text(text)
    print(text)
    _draw(out / "report.svg", report)


def _figure(figure: Figure, raw: Path, engines: Sequence[Engine]) -> dict[str, FigureSpread]:
    found: dict[str, FigureSpread] = {}
    for engine in engines:
        paths = sorted(raw.glob(f"{engine.name}.{figure.measure}.*.json"))
        values = tuple(figure.of(read(path).summary) for path in paths)
        if values:
            found[engine.name] = FigureSpread(statistics.median(values), min(values), max(values), values)
    return found


def _goals(figures: dict[str, dict[str, FigureSpread]]) -> list[PeerGoal]:
    goals = []
    for wanted in _GOALS:
        figure = next(each for each in FIGURES if (each.measure, each.name) == (wanted.measure, wanted.figure))
        spreads = figures.get(f"{wanted.measure}.{wanted.figure}", {})
        peers = {name: spreads[name] for name in wanted.peers if name in spreads}
        if wanted.ours not in spreads or not peers:
            continue
        choose = max if figure.more else min
        best = choose(peers, key=lambda name: peers[name].median)
        ours = spreads[wanted.ours]
        ratio = ours.median / peers[best].median
        rounds = tuple(one / other for one, other in zip(ours.rounds, peers[best].rounds, strict=False))
        met = ratio >= wanted.bound if figure.more else ratio <= wanted.bound
        sign = "≥" if figure.more else "≤"
        goals.append(PeerGoal(wanted.title, best, ratio, rounds, f"{sign} {wanted.bound:g}", met))
    for name, spread in figures.get("mixed.itl_spread", {}).items():
        if name.startswith("noria"):
            met = spread.median <= _ITL_SPREAD_MAX
            title = f"mixed, between tokens p99 / p50, {name}"
            goals.append(PeerGoal(title, "", spread.median, spread.rounds, f"≤ {_ITL_SPREAD_MAX:g}", met))
    return goals


def _markdown(report: PeerReport, engines: Sequence[Engine]) -> str:
    names = [each.name for each in engines if any(each.name in found for found in report.figures.values())]
    lines = [f"{report.date}, {report.cores} cores of {report.processor}", ""]
    if report.rate is not None:
        lines += [f"Half load: {report.rate:.2f} requests/s for all.", ""]
    lines += ["| median (range) | " + " | ".join(names) + " |", "| --- |" + " ---: |" * len(names)]
    for figure in FIGURES:
        found = report.figures.get(f"{figure.measure}.{figure.name}")
        if found:
            lines.append(f"| {figure.title} | " + " | ".join(_cell(found.get(name)) for name in names) + " |")
    for title, values in (("start, s", report.start_s), ("memory, GB", report.memory_gb)):
        cells = (f"{values[name]:.1f}" if name in values else "" for name in names)
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    lines += [
        "",
        "| ratio of medians | against | found | of each round | goal | |",
        "| --- | --- | ---: | --- | --- | --- |",
    ]
    for goal in report.goals:
        rounds = ", ".join(f"{each:.2f}" for each in goal.rounds)
        met = "met" if goal.met else "missed"
        lines.append(f"| {goal.title} | {goal.against} | {goal.ratio:.2f} | {rounds} | {goal.wanted} | {met} |")
    lines += ["", *(f"- {name}: {settings}" for name, settings in report.settings.items() if name in names), ""]
    return "\n".join(lines)


def _cell(spread: FigureSpread | None) -> str:
    if spread is None:
        return ""
    digits = 0 if spread.median >= 100 else 1
    return f"{spread.median:.{digits}f} ({spread.least:.{digits}f} to {spread.most:.{digits}f})"


def _draw(path: Path, report: PeerReport) -> None:
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure as Picture

    shown = [each for each in FIGURES if f"{each.measure}.{each.name}" in report.figures]
    if not shown:
        return
    columns = 3
    lines = -(-len(shown) // columns)
    picture = Picture(figsize=(14, 3 * lines), layout="constrained")
    FigureCanvasSVG(picture)
    grid = picture.subplots(lines, columns, squeeze=False)
    for axes, figure in zip(grid.flat, shown, strict=False):
        found = report.figures[f"{figure.measure}.{figure.name}"]
        names = list(found)[::-1]
        medians = [found[name].median for name in names]
        errors = [
            [found[name].median - found[name].least for name in names],
            [found[name].most - found[name].median for name in names],
        ]
        colors = ["tab:blue" if name.startswith("noria") else "tab:gray" for name in names]
        axes.barh(names, medians, xerr=errors, color=colors, capsize=2)
        axes.set_title(f"{figure.title} ({'more' if figure.more else 'less'} is better)", fontsize=9)
        axes.tick_params(labelsize=8)
    for axes in list(grid.flat)[len(shown) :]:
        axes.set_visible(False)
    picture.suptitle(f"{report.date}, {report.cores} cores of {report.processor}", fontsize=10)
    picture.savefig(path)


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()
