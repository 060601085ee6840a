"""Log events with fields, to standard error, as JSON or for a terminal."""

import contextlib
import logging
import sys
from typing import Any, TextIO, cast

import structlog

from noria.shared.config.config import LogSettings


def configure(settings: LogSettings) -> None:
    """Set up structlog once, at the start of a process; the standard library's loggers are joined to it."""
    console = settings.format == "console" or (settings.format == "auto" and sys.stderr.isatty())
    renderer: Any = structlog.dev.ConsoleRenderer() if console else structlog.processors.JSONRenderer()
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*shared, structlog.processors.format_exc_info, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        # One write for a whole line: all processes of a stack share one standard error, perhaps an unbuffered one.
        logger_factory=structlog.WriteLoggerFactory(
            cast("TextIO", _ErrorIgnoringStream(sys.stderr))
        ),  # no more of it is used
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(level, logging.WARNING))


def logger(service: str) -> structlog.typing.FilteringBoundLogger:
    """The logger of a service; events are short phrases, everything that varies is a field."""
    return cast("structlog.typing.FilteringBoundLogger", structlog.get_logger(service=service))


class _ErrorIgnoringStream:
    """A text stream that ignores write errors: a closed terminal or a full disk costs log lines, not the service."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            return self._stream.write(text)
        return 0

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()
