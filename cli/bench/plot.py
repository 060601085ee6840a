"""Plots of one run: output over time, and the distributions of the three latencies. Needs matplotlib (`noria[bench]`)."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from noria.cli.bench.request_timeline import BenchTimeline
from noria.shared.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS: Final = (".png", ".svg")
_BARS: Final = 60


def check_plottable(path: Path) -> None:
    """Raise UserError when a plot could not be drawn to this file: call it before a long run."""
    if path.suffix not in FORMATS:
        raise UserError(f"a plot is a {' or '.join(FORMATS)} file, not {path.name}")
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError("a plot needs matplotlib: pip install '.[bench]' in noria's source folder")


def draw(path: Path, title: str, timelines: Sequence[BenchTimeline]) -> None:
    """Draw the plots of a run into a file, under a title."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    done = [each for each in timelines if not each.error and each.arrivals]
    figure = Figure(figsize=(11, 7), layout="constrained")
    FigureCanvasAgg(figure)
    over_time, first, between, whole = figure.subplots(2, 2).flat
    _rate(over_time, done)
    _cumulative(first, "time to first token, ms", [each.ttft_s for each in done])
    _cumulative(between, "between tokens, ms", [gap for each in done for gap in each.token_gaps_s()])
    _cumulative(whole, "whole answer, ms", [each.e2e_s for each in done])
    figure.suptitle(title, fontsize=11)
    figure.savefig(path, dpi=110)


def _rate(axes: "Axes", done: Sequence[BenchTimeline]) -> None:
    axes.set_xlabel("s")
    axes.set_ylabel("pieces of output / s")
    if not done:
        return
    start_s = min(each.begun_s for each in done)
    times = [arrival - start_s for each in done for arrival in each.arrivals]
    width_s = max(times) / _BARS or 1.0
    heights = [0.0] * (_BARS + 1)
    for time_s in times:
        heights[int(time_s / width_s)] += 1 / width_s
    axes.stairs(heights, [width_s * edge for edge in range(_BARS + 2)], fill=True, alpha=0.6)


def _cumulative(axes: "Axes", name: str, seconds: Sequence[float]) -> None:
    axes.set_xlabel(name)
    axes.set_ylabel("share of samples")
    axes.set_ylim(0, 1.01)
    axes.grid(alpha=0.3)
    if seconds:
        axes.ecdf([each * 1000 for each in seconds])
