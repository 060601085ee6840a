"""A picture of one run: tokens over time, and how the three latencies are distributed. Needs matplotlib (`noria[bench]`)."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from noria.cli.bench.request_timeline import Observed
from noria.shared.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS: Final = (".png", ".svg")
_BARS: Final = 60


def check_plottable(path: Path) -> None:
    """Raise UserError when a plot could not be drawn to this file: to be asked before a long run."""
    if path.suffix not in FORMATS:
        raise UserError(f"a plot is a {' or '.join(FORMATS)} file, not {path.name}")
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError("a plot needs matplotlib: pip install '.[bench]' in noria's source folder")


def draw(path: Path, title: str, observed: Sequence[Observed]) -> None:
    """Write the picture."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    done = [each for each in observed if not each.error and each.arrivals]
    figure = Figure(figsize=(11, 7), layout="constrained")
    FigureCanvasAgg(figure)
    over_time, first, between, whole = figure.subplots(2, 2).flat
    _rate(over_time, done)
    _spread(first, "time to first token, ms", [each.first_s for each in done])
    _spread(between, "between tokens, ms", [gap for each in done for gap in each.gaps()])
    _spread(whole, "whole answer, ms", [each.whole_s for each in done])
    figure.suptitle(title, fontsize=11)
    figure.savefig(path, dpi=110)


def _rate(axes: "Axes", done: Sequence[Observed]) -> None:
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


def _spread(axes: "Axes", name: str, seconds: Sequence[float]) -> None:
    axes.set_xlabel(name)
    axes.set_ylabel("share of samples")
    axes.set_ylim(0, 1.01)
    axes.grid(alpha=0.3)
    if seconds:
        axes.ecdf([each * 1000 for each in seconds])
