"""The client for programs without an event loop: an `AsyncClient` in a thread of its own."""

import asyncio
import threading
import weakref
from collections import deque
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar, Unpack

from noria.client.asynchronous import AsyncClient
from noria.client.errors import Closed
from noria.client.generate_request import Options
from noria.client.generation import Generation
from noria.client.results import Accepted, Completion, Delta
from noria.client.timeouts import ClientTimeouts
from noria.client.trace_context import current_traceparent
from noria.proto.frontdoor import Description, Forecast, Identified, Message
from noria.shared.actor.curve import Curve

_T = TypeVar("_T")


class Client:
    """Generates text over one socket; safe to use from several threads.

    Example:
        with Client() as client:
            for delta in client.generate("Once upon a time", max_tokens=32):
                print(delta.text, end="")
            print(client.complete("The capital of France is", max_tokens=8).text)

    """

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        runtime_dir: str | None = None,
        credential: str = "",
        traffic_class: str = "",
        patience: ClientTimeouts | None = None,
        message_bytes_max: int | None = None,
        curve: Curve | None = None,
    ) -> None:
        self._client = AsyncClient(
            endpoint,
            runtime_dir=runtime_dir,
            credential=credential,
            traffic_class=traffic_class,
            patience=patience,
            message_bytes_max=message_bytes_max,
            curve=curve,
        )
        self._loop = _EventLoopThread()
        # Also runs when the interpreter exits with the client still open.
        self._finalizer = weakref.finalize(self, _shut, self._loop, self._client)

    @property
    def endpoint(self) -> str:
        """The address of the stack's public mailbox."""
        return self._client.endpoint

    def generate(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Message | Mapping[str, str]] | None = None,
        token_ids: Sequence[int] | None = None,
        **options: Unpack[Options],
    ) -> "SyncGeneration":
        """Start a generation; as `AsyncClient.generate`."""
        if not options.get("traceparent"):
            options["traceparent"] = current_traceparent()  # of this thread, not of the loop's

        async def start() -> Generation:
            return self._client.generate(prompt, messages=messages, token_ids=token_ids, **options)

        return SyncGeneration(self, self._loop, self._loop.run(start()))

    def complete(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Message | Mapping[str, str]] | None = None,
        token_ids: Sequence[int] | None = None,
        **options: Unpack[Options],
    ) -> Completion:
        """Generate and return the whole answer."""
        return self.generate(prompt, messages=messages, token_ids=token_ids, **options).result()

    def preview(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Message | Mapping[str, str]] | None = None,
        token_ids: Sequence[int] | None = None,
        timeout_s: float = 10.0,
        **options: Unpack[Options],
    ) -> Forecast:
        """Ask whether a request would be admitted now, and when it would start and end; nothing is generated."""
        return self._loop.run(
            self._client.preview(prompt, messages=messages, token_ids=token_ids, timeout_s=timeout_s, **options)
        )

    def identify(self, credential: str | None = None, timeout_s: float = 5.0) -> Identified:
        """Ask for the tenant of a credential and which classes it may use. Raises Refused and Unreachable."""
        return self._loop.run(self._client.identify(credential, timeout_s))

    def describe(self, timeout_s: float = 5.0) -> Description:
        """What is served, and what it still waits for. Raises Unreachable when nothing answers in time."""
        return self._loop.run(self._client.describe(timeout_s))

    def close(self) -> None:
        """Cancel what is open, close the socket, end the thread; more calls change nothing."""
        self._finalizer()

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class SyncGeneration:
    """A request under way; `Generation` without an event loop.

    Leaving the `for` loop early, `close` and dropping the last reference cancel the request, unless it has finished.
    """

    def __init__(self, client: Client, loop: "_EventLoopThread", generation: Generation) -> None:
        self._client = client  # which must outlive its generations
        self._loop = loop
        self._generation = generation

    @property
    def id(self) -> str:
        """The request's id."""
        return self._generation.id

    def accepted(self) -> Accepted:
        """Wait until the server has taken the request."""
        return self._loop.run(self._generation.accepted())

    def __iter__(self) -> "SyncDeltas":
        return SyncDeltas(self)

    def result(self) -> Completion:
        """Wait for the end and return the whole answer."""
        return self._loop.run(self._generation.result())

    def next_batch(self) -> list[Delta]:
        """Wait for news and return all there is; empty after the end."""
        return self._loop.run(_batch(self._generation))

    def cancel(self) -> None:
        """Ask for the end; whoever iterates gets what comes until then."""
        self._loop.run(self._generation.cancel())

    def close(self) -> None:
        """Cancel unless finished, and read no more."""
        self._loop.run(self._generation.aclose())

    def __enter__(self) -> "SyncGeneration":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class SyncDeltas(Iterator[Delta]):
    """The iterator of one `for`: when the loop lets go of it, the request is cancelled unless finished."""

    def __init__(self, generation: SyncGeneration) -> None:
        self._generation = generation
        self._news: deque[Delta] = deque()

    def __next__(self) -> Delta:
        if not self._news:
            self._news.extend(self._generation.next_batch())
        if not self._news:
            raise StopIteration
        return self._news.popleft()

    def __del__(self) -> None:
        self._generation._generation.__del__()


class _EventLoopThread:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._stopping = False
        self._thread = threading.Thread(target=self._loop.run_forever, name="noria-client", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine there and wait for it; an interrupted wait cancels it."""
        with self._lock:  # what is scheduled after the last coroutine would never run, and its caller wait for ever
            stopping = self._stopping or not self._thread.is_alive()
            future = None if stopping else asyncio.run_coroutine_threadsafe(work, self._loop)
        if future is None:
            work.close()
            raise Closed("the client is closed")
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self, last: Coroutine[Any, Any, None]) -> None:
        """Run one last coroutine, then end the thread and the loop."""
        with self._lock:
            self._stopping = True
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(last, self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        else:
            last.close()
        self._loop.close()


async def _batch(generation: Generation) -> list[Delta]:
    first = await generation.next()
    batch = [first] if first is not None else []
    while batch and (more := generation.ready()) is not None:
        batch.append(more)
    return batch


async def _finish(client: AsyncClient) -> None:
    client.close()
    # Whoever still waits in this loop for a generation gets `Closed` before the loop ends.
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=5)


def _shut(loop: _EventLoopThread, client: AsyncClient) -> None:
    loop.stop(_finish(client))
