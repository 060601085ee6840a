"""Shares the answers of background requests: one attachment to admission for any number of HTTP readers.

The newest attachment to a request owns its streams, so two readers of one gateway must share one. A reader at another
gateway takes the request over; this gateway then attaches again, and readers drop repeated text.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from noria.client import AsyncClient, ClientError, Completion, Delta, Superseded

_POLL_S: Final = 0.05


class AnswerFeed:
    """The deltas of one request so far, in order, and how it ended. Kept while it has readers."""

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
        """Wait for the end and return the complete answer. Raises ClientError."""
        while self._completion is None:
            if self._error is not None:
                raise self._error
            await self._changed.wait()
        return self._completion

    def close(self) -> None:
        """Stop reading from admission, when the last reader has left."""
        self._task.cancel()

    async def _run(self) -> None:
        while self._completion is None and self._error is None:
            try:
                await self._read()
            except Superseded:
                while self._client.reads(self._name):  # a newer attachment of this client goes first
                    await asyncio.sleep(_POLL_S)
            except ClientError as error:
                self._error = error
        self._notify_readers()

    async def _read(self) -> None:
        generation = self._client.attach(self._name, self._choices, self._credential)
        try:
            while (delta := await generation.next()) is not None:
                self._deltas.append(delta)
                self._notify_readers()
            self._completion = await generation.result()
        finally:
            generation.leave()

    def _notify_readers(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class FeedReader:
    """One reader of an answer feed, which starts at the first delta."""

    def __init__(self, feed: AnswerFeed, on_leave: Callable[[], None]) -> None:
        self._feed = feed
        self._on_leave: Callable[[], None] | None = on_leave
        self._position = 0

    async def next(self) -> Delta | None:
        """Wait for the next delta; None after the last. Raises ClientError."""
        delta = await self._feed.next(self._position)
        self._position += 1
        return delta

    async def result(self) -> Completion:
        """Wait for the end and return the complete answer. Raises ClientError."""
        return await self._feed.result()

    def leave(self) -> None:
        """Stop reading; a second call changes nothing."""
        if self._on_leave is not None:
            self._on_leave()
            self._on_leave = None


class AnswerFeeds:
    """All answer feeds of one gateway, by the names of requests on the wire."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._feeds: dict[str, AnswerFeed] = {}

    def read(self, name: str, choices: int, credential: str) -> FeedReader:
        """Begin to read a request's answer. The caller has checked that the credential may read it."""
        feed = self._feeds.get(name)
        if feed is None:
            feed = self._feeds[name] = AnswerFeed(self._client, name, choices, credential)
        feed.readers += 1
        return FeedReader(feed, lambda: self._leave(name, feed))

    def _leave(self, name: str, feed: AnswerFeed) -> None:
        feed.readers -= 1
        if feed.readers == 0:
            feed.close()
            if self._feeds.get(name) is feed:
                del self._feeds[name]
