"""The trace of a run: one line for each event, printed while it runs, or the last ones when it has failed."""

from collections import deque
from collections.abc import Callable
from typing import Final

from fakes.simulated.machine.clock import MILLISECOND, SECOND, SimulatedClock
from fakes.simulated.machine.network import Frames
from fakes.simulated.machine.process import SimulatedProcess

from noria.proto.base import Header, Service
from noria.proto.wire import Codec, every_kind

_CODEC: Final = Codec(every_kind())
_BODY_CHARACTERS: Final = 400
KEPT: Final = 80


class EventTrace:
    """Passes lines to `log`, if given. Keeps the last messages undecoded, for `last` to show when a run has failed."""

    def __init__(self, clock: SimulatedClock, log: Callable[[str], None] | None) -> None:
        self._clock = clock
        self._log = log
        self._kept: deque[tuple[int, str, str | tuple[str, Frames]]] = deque(maxlen=KEPT)

    def log(self, who: str, what: str) -> None:
        """Record an event of a process."""
        self._keep(who, what)

    def sent(self, process: SimulatedProcess, to: str, frames: Frames) -> None:
        """Record a message that a process sends."""
        self._keep(process.service.value, (to, frames))

    def last(self) -> list[str]:
        """Return the last lines, without heartbeats."""
        return [_line(*each) for each in self._kept]

    def log_peers(self, process: SimulatedProcess) -> None:
        """Record greetings, joins and losses of a process's peers."""
        if self._log is None:
            return
        joined, lost, greet = process.shell.joined, process.shell.lost, process.mailbox.accept_hello

        def tell_joined(peer: Service) -> None:
            self.log(process.service.value, f"is joined by {peer.value}")
            joined(peer)

        def tell_lost(peer: Service) -> None:
            self.log(process.service.value, f"loses {peer.value}")
            lost(peer)

        def tell_greet(header: Header, *, answer: bool = True) -> bool:
            result = greet(header, answer=answer)
            processes = f"{header.incarnation:x}"[:4] + ">" + f"{header.recipient:x}"[:4]
            self.log(process.service.value, f"is greeted by {header.sender} {processes} answer={answer}: {result}")
            return result

        process.shell.joined, process.shell.lost = tell_joined, tell_lost  # type: ignore[method-assign]  # a wiretap
        process.mailbox.accept_hello = tell_greet  # type: ignore[method-assign]  # a wiretap

    def _keep(self, who: str, what: str | tuple[str, Frames]) -> None:
        if isinstance(what, tuple) and b"Heartbeat" in what[1][0] and self._log is None:
            return
        self._kept.append((self._clock.now_ns, who, what))
        if self._log is not None:
            self._log(_line(self._clock.now_ns, who, what))


def _line(now_ns: int, who: str, what: str | tuple[str, Frames]) -> str:
    at_ms = (now_ns - 1_000 * SECOND) / MILLISECOND
    return f"{at_ms:10.3f} {who:12s} {what if isinstance(what, str) else _message(*what)}"


def _message(to: str, frames: Frames) -> str:
    header = _CODEC.header(frames)
    processes = f"{header.incarnation:x}"[:4] + ">" + f"{header.recipient:x}"[:4]
    body = repr(_CODEC.body(header, frames))
    return f"→ {to.removeprefix('sim://')} #{header.sequence} {processes} {body[:_BODY_CHARACTERS]}"
