"""A generation under way: iterate it, await its whole answer, or drop it, which cancels it."""

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType

from noria.client.call import Call, CallStatus
from noria.client.errors import Interrupted
from noria.client.protocol import ClientProtocol
from noria.client.results import Accepted, Completion, Delta


class Generation:
    """A request under way. Made by `AsyncClient.generate`; belongs to the event loop that made it.

    Iterate it for deltas, or await `result()`. Leaving the loop early (break, exception, cancelled task), `aclose`, and
    dropping the last reference all cancel the request, unless it has finished.

    Raises, where awaited or iterated: Refused, Unreachable, Interrupted, Superseded, Malformed, Closed.
    """

    def __init__(self, protocol: ClientProtocol, call: Call, loop: asyncio.AbstractEventLoop) -> None:
        self._protocol = protocol
        self._call = call
        self._loop = loop

    @property
    def id(self) -> str:
        """The request's id: the caller's own, or the one drawn for it."""
        return self._call.id

    @property
    def finished(self) -> bool:
        """Whether nothing more will arrive, though there may be deltas left to read."""
        return self._call.phase in (CallStatus.OVER, CallStatus.ABANDONED)

    async def accepted(self) -> Accepted:
        """Wait until the server has taken the request: its prompt's tokens, the model's canonical name, the seed."""
        call = self._call
        while call.accepted is None:
            if call.error is not None:
                raise call.error
            if self.finished:
                raise Interrupted("the request was cancelled before it was accepted")
            await self._wait()
        return call.accepted

    def __aiter__(self) -> "Deltas":
        return Deltas(self)

    async def result(self) -> Completion:
        """Wait for the end and return the whole answer, whether or not it was also iterated."""
        while (await self.next()) is not None:
            pass
        return self._call.completion()

    async def next(self) -> Delta | None:
        """Wait for the next delta; None after the last. A cancelled wait cancels the request."""
        call = self._call
        while True:
            delta = call.read()
            if delta is not None:
                return delta
            if call.error is not None:
                raise call.error
            if self.finished:
                return None
            await self._wait()

    def ready(self) -> Delta | None:
        """The next delta if there is one now."""
        return self._call.read()

    async def cancel(self) -> None:
        """Ask for the end. Whoever iterates gets what comes until then, and a last delta that says `cancelled`."""
        self._protocol.cancel(self._call, self._loop.time())

    async def aclose(self) -> None:
        """Cancel unless finished, and read no more."""
        self.leave()

    def leave(self) -> None:
        """`aclose` without a coroutine; to be called in the event loop's thread."""
        self._protocol.leave(self._call, self._loop.time())

    async def __aenter__(self) -> "Generation":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.leave()

    def __del__(self) -> None:
        # Runs in whatever thread and at whatever moment the last reference goes.
        if not self.finished and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_leave, self._protocol, self._call, self._loop)

    async def _wait(self) -> None:
        self._call.changed.clear()
        try:
            await self._call.changed.wait()
        except asyncio.CancelledError:
            self.leave()
            raise


class Deltas(AsyncIterator[Delta]):
    """The iterator of one `async for`: when the loop lets go of it, the request is cancelled unless finished."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation

    async def __anext__(self) -> Delta:
        delta = await self._generation.next()
        if delta is None:
            raise StopAsyncIteration
        return delta

    async def aclose(self) -> None:
        """Leave the loop."""
        self._generation.leave()

    def __del__(self) -> None:
        self._generation.__del__()


def _leave(protocol: ClientProtocol, call: Call, loop: asyncio.AbstractEventLoop) -> None:
    protocol.leave(call, loop.time())
