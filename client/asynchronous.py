"""The client for event loops."""

import asyncio
import os
import uuid
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Final, Unpack

import msgspec

from noria.client.call import Call, CallStatus
from noria.client.connection import Connection
from noria.client.errors import Closed, Unreachable
from noria.client.generate_request import Options, build_generate
from noria.client.generation import Generation
from noria.client.pending_queries import PendingQueries
from noria.client.protocol import ClientProtocol
from noria.client.results import Completion
from noria.client.timeouts import ClientTimeouts
from noria.client.trace_context import current_traceparent
from noria.proto.base import Header
from noria.proto.frontdoor import (
    Cancel,
    Describe,
    Description,
    Forecast,
    Generate,
    Identified,
    Identify,
    Inquire,
    Message,
    Preview,
    Standing,
)
from noria.shared.actor.curve import Curve
from noria.shared.actor.endpoints import public_mailbox
from noria.shared.config.config import LimitSettings, RuntimeSettings

RUNTIME_DIR_VARIABLE: Final = "NORIA_RUNTIME_DIR"
_UNCONNECTED_TICK_S: Final = 0.05


def default_endpoint(runtime_dir: str | None = None) -> str:
    """The public mailbox in a runtime folder: the given one, that of NORIA_RUNTIME_DIR, or the user's default."""
    return public_mailbox(RuntimeSettings(dir=runtime_dir or os.environ.get(RUNTIME_DIR_VARIABLE, "")))


class AsyncClient:
    """Generates text over one socket, however many streams are open.

    endpoint: an ipc:// or tcp:// address; that of the stack on this machine where absent. credential and
    traffic_class: for all requests that name none of their own. curve: keys, where the stack is reached over tcp with them.

    Example:
        async with AsyncClient() as client:
            async for delta in client.generate("Once upon a time", max_tokens=32):
                print(delta.text, end="")
            answer = await client.complete(messages=[{"role": "user", "content": "Hello"}])
            print(answer.text, answer.usage.total_tokens)

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
        self.endpoint = endpoint or default_endpoint(runtime_dir)
        self._defaults = Options(credential=credential, traffic_class=traffic_class)
        self._timeouts = patience or ClientTimeouts()
        self._bytes_max = message_bytes_max or LimitSettings().message_bytes_max
        self._protocol = ClientProtocol(self._timeouts, self._send)
        self._connection: Connection | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tick: asyncio.TimerHandle | None = None
        self._describing: dict[asyncio.Future[Description], None] = {}
        self._queries = PendingQueries(self._send)
        self._curve = curve
        self._closed = False

    def generate(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Message | Mapping[str, str]] | None = None,
        token_ids: Sequence[int] | None = None,
        **options: Unpack[Options],
    ) -> Generation:
        """Start a generation from exactly one of text, chat messages and token ids.

        The request is sent at once. Raises Refused for what can be seen to be wrong here, TypeError for unknown
        options; everything else is raised by the generation.

        Example:
            async for delta in client.generate(messages=[{"role": "user", "content": "Hi"}], temperature=0):
                print(delta.text, end="")

        """
        loop = self._open()
        merged = Options(**{**self._defaults, **options})
        generate = build_generate(prompt, messages, token_ids, merged, bytes_max=self._bytes_max)
        call = self._protocol.begin(generate, options.get("traceparent") or current_traceparent(), loop.time())
        return Generation(self._protocol, call, loop)

    async def complete(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Message | Mapping[str, str]] | None = None,
        token_ids: Sequence[int] | None = None,
        **options: Unpack[Options],
    ) -> Completion:
        """Generate and return the whole answer. Cancelling the task cancels the request."""
        return await self.generate(prompt, messages=messages, token_ids=token_ids, **options).result()

    async def preview(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Message | Mapping[str, str]] | None = None,
        token_ids: Sequence[int] | None = None,
        timeout_s: float = 10.0,
        **options: Unpack[Options],
    ) -> Forecast:
        """Ask whether a request would be admitted now, and when it would start and end; nothing is generated.

        A refusal is part of the answer. Raises Unreachable when nothing answers in time.
        """
        self._open()
        merged = Options(**{**self._defaults, **options, "request_id": uuid.uuid4().hex})
        request = build_generate(prompt, messages, token_ids, merged, bytes_max=self._bytes_max)
        answer = await self._queries.ask(request.id, Preview(request), timeout_s, self.endpoint)
        assert isinstance(answer, Forecast)
        return answer

    async def identify(self, credential: str | None = None, timeout_s: float = 5.0) -> Identified:
        """Ask for the tenant of a credential and which classes it may use; the client's own where absent.

        Raises Refused for an unknown one, Unreachable when nothing answers in time.
        """
        self._open()
        name = uuid.uuid4().hex
        answer = await self._queries.ask(name, Identify(name, self._own(credential)), timeout_s, self.endpoint)
        assert isinstance(answer, Identified)
        return answer

    async def standing(self, request_id: str, credential: str | None = None, timeout_s: float = 5.0) -> Standing:
        """How a request stands, whoever made it with the same credential; its answer is not read.

        Raises Refused (`NOT_FOUND`) for one that is not known, Unreachable when nothing answers in time.
        """
        self._open()
        name = uuid.uuid4().hex
        question = Inquire(name, request_id, self._own(credential))
        answer = await self._queries.ask(name, question, timeout_s, self.endpoint)
        assert isinstance(answer, Standing)
        return answer

    def attach(self, request_id: str, n: int = 1, credential: str | None = None) -> Generation:
        """Read the answer of a request with `n` choices that was made elsewhere, from its beginning.

        Whoever read it before gets nothing more. Leaving it cancels it only if it is neither kept nor in the background.
        """
        loop = self._open()
        made = Generate(request_id, n=n, credential=self._own(credential), background=True)
        call = Call(made, "", loop.time(), phase=CallStatus.OPEN, joined=True)
        self._protocol.join(call, loop.time())
        return Generation(self._protocol, call, loop)

    def reads(self, request_id: str) -> bool:
        """Whether the answer of a request is being read here."""
        return request_id in self._protocol.calls

    def cancel(self, request_id: str, credential: str | None = None) -> bool:
        """Ask for the end of a background request by its id alone; False where there is no connection just now."""
        self._open()
        return self._send(Cancel(request_id, credential=self._own(credential)), "")

    def _own(self, credential: str | None) -> str:
        return self._defaults.get("credential", "") if credential is None else credential

    async def describe(self, timeout_s: float = 5.0) -> Description:
        """What is served, and what it still waits for. Raises Unreachable when nothing answers in time."""
        loop = self._open()
        waiter: asyncio.Future[Description] = loop.create_future()
        self._describing[waiter] = None
        self._send(Describe(), "")
        try:
            return await asyncio.wait_for(waiter, timeout_s)
        except TimeoutError as error:
            raise Unreachable(f"nothing answered at {self.endpoint} within {timeout_s:g} s") from error
        finally:
            self._describing.pop(waiter, None)

    async def aclose(self) -> None:
        """Cancel what is open and close the socket; more calls change nothing."""
        self.close()

    def close(self) -> None:
        """`aclose` without a coroutine; to be called in the event loop's thread."""
        self._closed = True
        if self._connection is None:
            return
        if self._tick is not None:
            self._tick.cancel()
        self._protocol.close()
        self._connection.close()
        self._connection = None
        self._queries.close()
        for waiter in self._describing:
            if not waiter.done():
                waiter.set_exception(Closed("the client was closed"))

    async def __aenter__(self) -> "AsyncClient":
        self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _open(self) -> asyncio.AbstractEventLoop:
        if self._closed:
            raise Closed("the client is closed")
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
            self._connection = Connection(
                self.endpoint, self._receive, self._protocol.flush_acknowledgements, self._connected, self._curve
            )
            self._schedule_tick(loop)
        assert self._loop is loop, "a client belongs to the event loop that first used it"
        return loop

    def _send(self, body: msgspec.Struct, traceparent: str) -> bool:
        return self._connection is not None and self._connection.send(body, traceparent)

    def _connected(self) -> None:
        assert self._loop is not None
        self._protocol.connected(self._loop.time())
        self._queries.repeat()
        if self._describing:
            self._send(Describe(), "")

    def _receive(self, header: Header, body: msgspec.Struct) -> None:
        assert self._loop is not None
        if self._queries.receive(body):
            return
        self._protocol.receive(header, body, self._loop.time())
        if isinstance(body, Description):
            for waiter in self._describing:
                if not waiter.done():
                    waiter.set_result(body)

    def _schedule_tick(self, loop: asyncio.AbstractEventLoop) -> None:
        assert self._connection is not None
        self._connection.look()
        self._protocol.tick(loop.time())
        longest_s = 1.0 if self._connection.writable else _UNCONNECTED_TICK_S
        interval_s = min(longest_s, self._timeouts.resend_s / 2, self._timeouts.ping_s / 2)
        self._tick = loop.call_later(interval_s, self._schedule_tick, loop)
