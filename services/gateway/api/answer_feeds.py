"""Background requests that are being read: one reading of each from admission, for any number of HTTP readers.

The newest attachment to a request owns its streams, so that two readers of one gateway share theirs here. Whoever reads
a request through another gateway takes it over; it is asked for again then, and readers drop what they have.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from noria.client import AsyncClient, ClientError, Completion, Delta, Superseded

_PAUSE_S: Final = 0.05


class Feed:
    """What has come of one request, in order, and how it ended. Kept while somebody reads it."""

    def __init__(self, client: AsyncClient, name: str, choices: int, credential: str) -> None:
        self.readers = 0
        self._client = client
        self._name, self._choices, self._credential = name, choices, credential
        self._deltas: list[Delta] = []
        self._completion: Completion | None = None
        self._error: ClientError | None = None
        self._changed = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def next(self, position: int) -> Delta | None:
        """The delta at a position, waiting for it; None after the last. Raises ClientError."""
        while position >= len(self._deltas):
            if self._error is not None:
                raise self._error
            if self._completion is not None:
                return None
            await self._changed.wait()
        return self._deltas[position]

    async def result(self) -> Completion:
        """Wait for the end. Raises ClientError."""
        while self._completion is None:
            if self._error is not None:
                raise self._error
            await self._changed.wait()
        return self._completion

    def close(self) -> None:
        """Nobody reads any more."""
        self._task.cancel()

    async def _run(self) -> None:
        while self._completion is None and self._error is None:
            try:
                await self._read()
            except Superseded:
                while self._client.reads(self._name):  # it was asked for anew, and whoever asked goes first
                    await asyncio.sleep(_PAUSE_S)
            except ClientError as error:
                self._error = error
        self._tell()

    async def _read(self) -> None:
        generation = self._client.attach(self._name, self._choices, self._credential)
        try:
            while (delta := await generation.next()) is not None:
                self._deltas.append(delta)
                self._tell()
            self._completion = await generation.result()
        finally:
            generation.leave()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class Reading:
    """One reader of a feed, from its beginning."""

    def __init__(self, feed: Feed, left: Callable[[], None]) -> None:
        self._feed = feed
        self._left: Callable[[], None] | None = left
        self._position = 0

    async def next(self) -> Delta | None:
        """Wait for the next delta; None after the last. Raises ClientError."""
        delta = await self._feed.next(self._position)
        self._position += 1
        return delta

    async def result(self) -> Completion:
        """Wait for the end. Raises ClientError."""
        return await self._feed.result()

    def leave(self) -> None:
        """Read no more; again changes nothing."""
        if self._left is not None:
            self._left()
            self._left = None


class Feeds:
    """All of one gateway, by the names of the requests inside."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._feeds: dict[str, Feed] = {}

    def read(self, name: str, choices: int, credential: str) -> Reading:
        """Begin to read a request, of which the caller has shown that it may."""
        feed = self._feeds.get(name)
        if feed is None:
            feed = self._feeds[name] = Feed(self._client, name, choices, credential)
        feed.readers += 1
        return Reading(feed, lambda: self._leave(name, feed))

    def _leave(self, name: str, feed: Feed) -> None:
        feed.readers -= 1
        if feed.readers == 0:
            feed.close()
            if self._feeds.get(name) is feed:
                del self._feeds[name]
