"""The phases of the whole stack, the order in which services start and stop, and the supervisor's exit statuses.

    IDLE ─▶ STARTING ─▶ SERVING ─▶ DRAINING ─▶ STOPPING ─▶ OVER
      └────────┴───────────┴─── fatal failure, or a stop before SERVING ──▲

The phase only moves forward, and may skip phases.
"""

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


class StackPhase(IntEnum):
    """The phase of the whole stack, which only moves forward.

    IDLE: nothing was started. STARTING: some child has not been ready yet. SERVING: all have been. DRAINING: no new
    requests, running ones finish. STOPPING: children are ended one after the other. OVER: no child is left.
    """

    IDLE = 0
    STARTING = 1
    SERVING = 2
    DRAINING = 3
    STOPPING = 4
    OVER = 5


class IllegalEvent(Exception):  # noqa: N818 - named after what it is, like the events
    """Raised for an event that cannot happen in the present phase, which is a bug of the shell."""
