"""What happens in a run, told line by line to whoever wants to read it."""

from collections import deque
from collections.abc import Callable
from typing import Final

from fakes.simulated.clock import MILLISECOND, SECOND, Clock
from fakes.simulated.life import Life
from fakes.simulated.network import Frames

from noria.proto.base import Header, Service
from noria.proto.wire import Codec, every_kind

_CODEC: Final = Codec(every_kind())
_BODY_CHARACTERS: Final = 400
KEPT: Final = 80


class Trace:
    """Tells lines to `tell`, or to nobody. Keeps the last messages undecoded, for `last` to show when a run has failed."""

    def __init__(self, clock: Clock, tell: Callable[[str], None] | None) -> None:
        self._clock = clock
        self._tell = tell
        self._kept: deque[tuple[int, str, str | tuple[str, Frames]]] = deque(maxlen=KEPT)

    def tell(self, who: str, what: str) -> None:
        """Something happened."""
        self._keep(who, what)

    def sent(self, life: Life, to: str, frames: Frames) -> None:
        """A process sends a message."""
        self._keep(life.service.value, (to, frames))

    def last(self) -> list[str]:
        """The last lines, heartbeats left out."""
        return [_line(*each) for each in self._kept]

    def overhear(self, life: Life) -> None:
        """Tell what a process hears of its peers."""
        if self._tell is None:
            return
        joined, lost, greet = life.shell.joined, life.shell.lost, life.mailbox.accept_hello

        def tell_joined(peer: Service) -> None:
            self.tell(life.service.value, f"is joined by {peer.value}")
            joined(peer)

        def tell_lost(peer: Service) -> None:
            self.tell(life.service.value, f"loses {peer.value}")
            lost(peer)

        def tell_greet(header: Header, *, answer: bool = True) -> bool:
            result = greet(header, answer=answer)
            lives = f"{header.incarnation:x}"[:4] + ">" + f"{header.recipient:x}"[:4]
            self.tell(life.service.value, f"is greeted by {header.sender} {lives} answer={answer}: {result}")
            return result

        life.shell.joined, life.shell.lost = tell_joined, tell_lost  # type: ignore[method-assign]  # a wiretap
        life.mailbox.accept_hello = tell_greet  # type: ignore[method-assign]  # a wiretap

    def _keep(self, who: str, what: str | tuple[str, Frames]) -> None:
        if isinstance(what, tuple) and b"Heartbeat" in what[1][0] and self._tell is None:
            return
        self._kept.append((self._clock.now_ns, who, what))
        if self._tell is not None:
            self._tell(_line(self._clock.now_ns, who, what))


def _line(now_ns: int, who: str, what: str | tuple[str, Frames]) -> str:
    at_ms = (now_ns - 1_000 * SECOND) / MILLISECOND
    return f"{at_ms:10.3f} {who:12s} {what if isinstance(what, str) else _message(*what)}"


def _message(to: str, frames: Frames) -> str:
    header = _CODEC.header(frames)
    lives = f"{header.incarnation:x}"[:4] + ">" + f"{header.recipient:x}"[:4]
    body = repr(_CODEC.body(header, frames))
    return f"→ {to.removeprefix('sim://')} #{header.sequence} {lives} {body[:_BODY_CHARACTERS]}"
