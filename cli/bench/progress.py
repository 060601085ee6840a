"""The progress of a benchmark run on a terminal: one line on standard error, rewritten as requests end."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_line(count: int) -> Iterator[Callable[[int], None]]:
    """Yield a function to call with the number of requests that have ended; it does nothing where there is no terminal."""
    if not sys.stderr.isatty():
        yield lambda ended: None
        return

    def write(ended: int) -> None:
        sys.stderr.write(f"\r{ended} of {count}")
        sys.stderr.flush()

    try:
        yield write
    finally:
        sys.stderr.write("\r\033[K")
        sys.stderr.flush()
