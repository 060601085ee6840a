"""Progress of fetching a model: the callback that reports it, and a progress bar on the terminal."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

ProgressCallback = Callable[[str, int, int], None]
"""Called with a stage ("download", "verify", "convert", "wait"), bytes done, and bytes in total; a total of 0 is unknown."""


@contextlib.contextmanager
def progress_bar() -> Iterator[ProgressCallback]:
    """Yield a callback that draws a progress bar on standard error, one line for each stage."""
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


def folder_bytes(folder: Path) -> int:
    """Return the size of all files in a folder, which another process may be writing to."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # a temporary file may go meanwhile
            if path.is_file():
                total += path.stat().st_size
    return total
