"""A small OpenAI-compatible server with known delays, which records when it wrote each piece.

It runs in the event loop of whoever uses it; nothing but asyncio, so that its bytes are exactly those given here.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Served:
    """One served request: its body, when it was read, and when each piece of output was written."""

    body: dict[str, object]
    read_s: float = 0.0
    written_s: list[float] = field(default_factory=list)


class OpenAiServer:
    """Answers each request with pieces of so many tokens, `first_s` after it came and `gap_s` apart.

    pieces: tokens in each piece; where absent, one token each until max_tokens. status: of every answer. cut_after:
    close the connection after so many pieces. usage: whether streams end with it. keep: whether connections are kept.
    rude: connections are said to be kept, and closed.
    """

    def __init__(
        self,
        first_s: float = 0.0,
        gap_s: float = 0.0,
        *,
        pieces: Sequence[int] = (),
        status: int = 200,
        cut_after: int | None = None,
        usage: bool = True,
        keep: bool = True,
        rude: bool = False,
        line_end: str = "\n",
    ) -> None:
        self.first_s, self.gap_s = first_s, gap_s
        self.pieces, self.status, self.cut_after = pieces, status, cut_after
        self.usage, self.keep, self.line_end, self.rude = usage, keep, line_end, rude
        self.served: list[Served] = []
        self.connections = 0
        self.open = self.most_open = 0
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"

    async def __aenter__(self) -> "OpenAiServer":
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *exception: object) -> None:
        assert self._server is not None
        self._server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while await self._answer(reader, writer):
                pass
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, path, _ = head.split("\r\n")[0].split(" ")
        headers = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        if method == "GET" and path.endswith("/models"):
            self._whole(writer, 200, {"object": "list", "data": [{"id": "fake"}]})
        elif self.status != 200:
            self._whole(writer, self.status, {"error": {"message": "not today"}})
        else:
            served = Served(json.loads(body), time.perf_counter())
            self.served.append(served)
            self.open += 1
            self.most_open = max(self.most_open, self.open)
            try:
                return await self._stream(writer, served, chat="chat" in path) and self.keep and not self.rude
            finally:
                self.open -= 1
        return True

    def _whole(self, writer: asyncio.StreamWriter, status: int, content: object) -> None:
        text = json.dumps(content).encode()
        writer.write(f"HTTP/1.1 {status} X\r\ncontent-length: {len(text)}\r\n\r\n".encode() + text)

    async def _stream(self, writer: asyncio.StreamWriter, served: Served, *, chat: bool) -> bool:
        connection = "" if self.keep else "connection: close\r\n"
        writer.write(f"HTTP/1.1 200 OK\r\n{connection}transfer-encoding: chunked\r\n\r\n".encode())
        if chat:
            self._event(writer, {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        wanted = served.body["max_tokens"]
        assert isinstance(wanted, int)
        pieces = self.pieces or [1] * wanted
        await asyncio.sleep(self.first_s)
        for number, tokens in enumerate(pieces):
            if number:
                await asyncio.sleep(self.gap_s)
            if number == self.cut_after:
                return False
            text = " x" * tokens
            choice: dict[str, object] = {"delta": {"content": text}} if chat else {"text": text}
            self._event(writer, {"choices": [{"index": 0, **choice, "finish_reason": None}]})
            await writer.drain()
            served.written_s.append(time.perf_counter())
        end: dict[str, object] = {"delta": {}} if chat else {"text": ""}
        self._event(writer, {"choices": [{"index": 0, **end, "finish_reason": "length"}]})
        if self.usage:
            usage = {"prompt_tokens": 7, "completion_tokens": sum(pieces), "total_tokens": 7 + sum(pieces)}
            self._event(writer, {"choices": [], "usage": usage})
        self._chunk(writer, f"data: [DONE]{self.line_end}{self.line_end}".encode())
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    def _event(self, writer: asyncio.StreamWriter, content: object) -> None:
        self._chunk(writer, f"data: {json.dumps(content)}{self.line_end}{self.line_end}".encode())

    def _chunk(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
