"""Questions that are not about a request under way: asked once, and again over each new connection, until answered."""

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from noria.client.errors import Closed, Refused, Unreachable
from noria.proto.frontdoor import Forecast, Identified, Rejected, Standing

QUESTIONS_MAX: Final = 1024
_Answer = Forecast | Identified | Standing


class PendingQueries:
    """All open questions of one client, by name."""

    def __init__(self, send: Callable[[msgspec.Struct, str], bool]) -> None:
        self._send = send
        self._open: dict[str, tuple[msgspec.Struct, asyncio.Future[_Answer]]] = {}

    async def ask(self, name: str, question: msgspec.Struct, timeout_s: float, endpoint: str) -> _Answer:
        """Ask and wait. Raises Refused, Unreachable and Closed."""
        if len(self._open) >= QUESTIONS_MAX:
            raise Unreachable(f"{len(self._open)} questions of this client wait for an answer from {endpoint}")
        waiter: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
        self._open[name] = (question, waiter)
        self._send(question, "")
        try:
            return await asyncio.wait_for(waiter, timeout_s)
        except TimeoutError as error:
            raise Unreachable(f"nothing answered at {endpoint} within {timeout_s:g} s") from error
        finally:
            self._open.pop(name, None)

    def repeat(self) -> None:
        """There is a new connection: what was asked over an older one may be lost."""
        for question, _ in list(self._open.values()):
            self._send(question, "")

    def receive(self, body: msgspec.Struct) -> bool:
        """Take a message if it answers a question."""
        if not isinstance(body, _Answer | Rejected) or body.id not in self._open:
            return isinstance(body, _Answer)
        _, waiter = self._open[body.id]
        if waiter.done():
            return True
        if isinstance(body, Rejected):
            waiter.set_exception(Refused(body.code, body.reason, body.parameter, body.retry_after_ms))
        else:
            waiter.set_result(body)
        return True

    def close(self) -> None:
        """Nobody will answer any more."""
        for _, waiter in self._open.values():
            if not waiter.done():
                waiter.set_exception(Closed("the client was closed"))
