"""How far a pull is: what tells it, and how it looks on a terminal."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

Report = Callable[[str, int, int], None]
"""Told how far a pull is: stage ("download", "verify", "convert", "wait"), done, total; total 0 is unknown."""


@contextlib.contextmanager
def terminal_report() -> Iterator[Report]:
    """A progress bar on standard error that draws one line per stage."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<9}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    tasks: dict[str, TaskID] = {}
    progress = Progress(*columns, console=Console(stderr=True))

    def report(stage: str, done: int, total: int) -> None:
        progress.start()  # only now: an error before any progress stays the only thing on the terminal
        if stage not in tasks:
            tasks[stage] = progress.add_task(stage, total=None)
        progress.update(tasks[stage], completed=done, total=total or None)

    try:
        yield report
    finally:
        if tasks:
            progress.stop()


def bytes_in(folder: Path) -> int:
    """The size of everything in a folder that something else may be writing to."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # a temporary file may go while we look
            if path.is_file():
                total += path.stat().st_size
    return total
