"""Queries (`Preview`, `Identify`, `Inquire`): sent once, and again over each new connection, until answered."""

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from noria.client.errors import Closed, Refused, Unreachable
from noria.proto.frontdoor import Forecast, Identified, Rejected, Standing

QUESTIONS_MAX: Final = 1024
_Answer = Forecast | Identified | Standing


class PendingQueries:
    """The unanswered queries of one client, by name."""

    def __init__(self, send: Callable[[msgspec.Struct, str], bool]) -> None:
        self._send = send
        self._open: dict[str, tuple[msgspec.Struct, asyncio.Future[_Answer]]] = {}

    async def ask(self, name: str, question: msgspec.Struct, timeout_s: float, endpoint: str) -> _Answer:
        """Send a query and wait for its answer. Raises Refused, Unreachable (also after `timeout_s`) and Closed."""
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
        """Send all queries again over a new connection, since those sent over an older one may be lost."""
        for question, _ in list(self._open.values()):
            self._send(question, "")

    def receive(self, body: msgspec.Struct) -> bool:
        """Handle a message if it is the answer to a query; True when it is of a kind that only answers queries."""
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
        """Fail all queries with Closed."""
        for _, waiter in self._open.values():
            if not waiter.done():
                waiter.set_exception(Closed("the client was closed"))
