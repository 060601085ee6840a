"""Where a whole stack is in its life, in which order its services start and stop, and with what status it ends."""

from enum import IntEnum
from typing import Final

from noria.proto.base import Service

START_ORDER: Final = (
    Service.EXECUTOR,  # loads the longest
    Service.SCHEDULER,
    Service.DETOKENIZER,
    Service.ADMISSION,
    Service.GATEWAY,
)
STOP_ORDER: Final = (
    Service.ADMISSION,  # it tells its clients, the gateway among them, what becomes of requests that are not finished
    Service.GATEWAY,
    Service.SCHEDULER,
    Service.EXECUTOR,
    Service.DETOKENIZER,
)
EXIT_ORDERLY: Final = 0
EXIT_FAILED: Final = 1
EXIT_USER_ERROR: Final = 2


class Course(IntEnum):
    """Where the whole stack is: it only ever moves forward."""

    IDLE = 0
    STARTING = 1
    SERVING = 2
    DRAINING = 3
    STOPPING = 4
    OVER = 5


class IllegalEvent(Exception):  # noqa: N818 - named after what it is, like the events
    """An event that cannot happen in the present phase: a bug of the shell."""
