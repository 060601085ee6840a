"""How far a run is, on a terminal: one line on standard error."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(count: int) -> Iterator[Callable[[int], None]]:
    """Yield what is to be called with the number of requests that have ended."""
    if not sys.stderr.isatty():
        yield lambda ended: None
        return

    def tell(ended: int) -> None:
        sys.stderr.write(f"\r{ended} of {count}")
        sys.stderr.flush()

    try:
        yield tell
    finally:
        sys.stderr.write("\r\033[K")
        sys.stderr.flush()
