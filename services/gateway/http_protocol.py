"""HTTP/1.1 as uvicorn reads it, with bounds that uvicorn leaves to a proxy: on what is not body, on time, and on requests at once."""

import asyncio
import re
from collections.abc import Callable
from typing import Final

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES_MAX: Final = 65_536
HEAD_S: Final = 20.0
PIPELINED_MAX: Final = 16
_LINGER_S: Final = 2.0
_ANSWER: Final = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
_REASON: Final = b'{"error":{"message":"%b","type":"invalid_request_error","param":null,"code":"%b"}}'
_UPGRADE_TOKEN: Final = re.compile(rb"[ \t]*(upgrade|http2-settings)[ \t]*", re.IGNORECASE)


def _answer(status: bytes, message: bytes, code: bytes) -> bytes:
    reason = _REASON % (message, code)
    return _ANSWER % (status, len(reason), reason)


_HEAD_TOO_LARGE: Final = _answer(
    b"431 Request Header Fields Too Large",
    b"the request's head, with chunk extensions and trailers, is larger than %d bytes" % HEAD_BYTES_MAX,
    b"head_too_large",
)
_INVALID: Final = _answer(b"400 Bad Request", b"the request is not valid HTTP/1.1", b"invalid_http")
_HOST: Final = _answer(b"400 Bad Request", b"the request needs one Host header, and only one", b"invalid_http")


class _Refusal(Exception):  # noqa: N818  # not an error: it stops the parser
    """The request being parsed is refused with this answer."""

    def __init__(self, answer: bytes) -> None:
        super().__init__(answer)
        self.answer = answer


class _AnswerTransport:
    """The part of a transport that answers are written to; `close` is its owner's, the rest the transport's own."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self.write = transport.write
        self.is_closing = transport.is_closing
        self.close = close


class BoundedHttp(HttpToolsProtocol):
    """One connection. A head that follows another request in the same read may exceed the bound by what that read brings.

    The bound is on all bytes of a request that are neither body nor a plain chunk's framing: head, chunk extensions, trailers.
    """

    head_s = HEAD_S
    _head_bytes = 0  # of the present request, as far as it was read
    _in_head = True  # whether the next bytes belong to a head, or no request has begun
    _chunk_bytes = 0  # body bytes of the present chunk
    _no_more = False  # whether what still comes is thrown away
    _lingering = False  # whether our side is closed, and the client's is waited for
    _plain_head: bytes | None = None  # the present head without its offer of another protocol, to be parsed again
    _impatience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Wait for a request, but not for ever."""
        super().connection_made(transport)
        self._wait_for_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came, a head only as far as its bound, and count what is not body."""
        self._unset_keepalive_if_required()
        while data and not self._no_more and not self.transport.is_closing():
            if self._in_head and self._impatience is None:
                self._wait_for_request()
            room = HEAD_BYTES_MAX - self._head_bytes if self._in_head else len(data)
            piece, data = (data, b"") if room >= len(data) else (data[:room], data[room:])
            self._head_bytes += len(piece)
            left = self._parse(piece)
            data = left + data if left else data
            # Of a request that began inside this piece only the body was counted, downwards.
            self._head_bytes = max(self._head_bytes, 0)
            too_large = self._head_bytes > HEAD_BYTES_MAX or (self._in_head and self._head_bytes == HEAD_BYTES_MAX)
            if too_large and not self._no_more:
                self._refuse(_HEAD_TOO_LARGE)

    def send_400_response(self, msg: str) -> None:
        """Refuse what the parser could not read."""
        del msg
        self._refuse(_INVALID)

    def on_message_begin(self) -> None:
        """Another request begins. Refuses it if too many wait already."""
        if len(self.pipeline) >= PIPELINED_MAX:
            raise _Refusal(_INVALID)  # never said: the answers before it end the connection
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A line of the head, or a trailer, which is ignored."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is there."""
        version = self.parser.get_http_version()
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts > 1 or (hosts == 0 and version != "1.0"):
            raise _Refusal(_HOST)
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                raise _Refusal(_INVALID)
            self._plain_head = self._without_upgrade(version)
            return
        self._in_head = False
        self._stop_waiting()
        super().on_headers_complete()
        self.cycle.transport = _AnswerTransport(self.transport, self._close_after_answer)  # type: ignore[assignment]

    def on_body(self, body: bytes) -> None:
        """Body is bounded elsewhere."""
        self._head_bytes -= len(body)
        self._chunk_bytes += len(body)
        super().on_body(body)

    def on_chunk_header(self) -> None:
        """A chunk begins."""
        self._chunk_bytes = 0

    def on_chunk_complete(self) -> None:
        """A chunk is there: its size in plain digits and two line ends are not counted."""
        if self._chunk_bytes:
            self._head_bytes -= len(b"%x\r\n\r\n" % self._chunk_bytes)

    def on_message_complete(self) -> None:
        """The next bytes begin another head."""
        if self._plain_head is not None:
            return
        self._in_head = True
        self._head_bytes = 0
        self._stop_waiting()
        if self.cycle.response_complete:  # nothing else waits for the client any more
            self._wait_for_request()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Answer the next request, or wait for it; close when no more is read."""
        if self._lingering:
            self.server_state.total_requests += 1
            return
        last = not self.pipeline
        super().on_response_complete()
        if not last or self.transport.is_closing():
            return
        if self._no_more:
            self._unset_keepalive_if_required()
            self._hang_up()
        elif not self._in_head:
            self._wait_for_request()  # the rest of this one is thrown away, but not for ever

    def _parse(self, piece: bytes) -> bytes:
        """Feed the parser. Returns what is to be parsed next, after an offer of another protocol was left out."""
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade as upgrade:
            if self._plain_head is None:
                self._refuse(_INVALID)
                return b""
            again, self._plain_head = self._plain_head, None
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as in uvicorn
            self._head_bytes = 0
            return again + piece[upgrade.args[0] :]
        except httptools.HttpParserError as error:
            cause = error.__context__
            self._refuse(cause.answer if isinstance(cause, _Refusal) else _INVALID)
        return b""

    def _without_upgrade(self, version: str) -> bytes:
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version.encode())]
        for name, value in self.headers:
            if name == b"connection":
                kept = b",".join(each for each in value.split(b",") if not _UPGRADE_TOKEN.fullmatch(each))
                lines.append(b"connection: %b" % kept)
            elif name not in (b"upgrade", b"http2-settings"):
                lines.append(b"%b: %b" % (name, value))
        return b"\r\n".join([*lines, b"", b""])

    def _refuse(self, answer: bytes) -> None:
        """Read no more requests. Answer this one, unless an earlier answer is under way, which then is the last one."""
        self._no_more = True
        self._stop_waiting()
        cycle = self.cycle
        if self._in_head:
            if cycle is not None and not cycle.response_complete:  # type: ignore[redundant-expr]  # None at first
                return
        elif self.pipeline:
            self.pipeline.popleft()
            return
        elif cycle.response_complete:
            self._hang_up()
            return
        elif cycle.response_started:
            self.transport.close()
            return
        else:
            cycle.disconnected = True
            cycle.message_event.set()
        self.transport.write(answer)
        self._hang_up()

    def _close_after_answer(self) -> None:
        if self._in_head and not self._no_more:
            self.transport.close()
        else:
            self._hang_up()

    def _hang_up(self) -> None:
        """Close our side, and the connection soon: closed at once, with bytes unread, it would take the answer with it."""
        if self._lingering or self.transport.is_closing():
            return
        self._no_more = self._lingering = True
        self._stop_waiting()
        self.flow.resume_reading()
        self.transport.write_eof()
        self._impatience = self.loop.call_later(_LINGER_S, self.transport.close)

    def _wait_for_request(self) -> None:
        self._stop_waiting()
        self._impatience = self.loop.call_later(self.head_s, self._lose_patience)

    def _stop_waiting(self) -> None:
        if self._impatience is not None:
            self._impatience.cancel()
            self._impatience = None

    def _lose_patience(self) -> None:
        self._impatience = None
        # With an answer under way, what came is the beginning of a pipelined request: no reason to cut the answer.
        idle = self.cycle is None or self.cycle.response_complete  # type: ignore[redundant-expr]  # None at first
        if idle and not self.transport.is_closing():
            self.transport.close()
