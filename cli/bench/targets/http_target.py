"""A benchmark target for OpenAI-compatible servers: streamed completions or chat completions over kept connections."""

import time
from collections.abc import Mapping
from typing import Final, Literal
from urllib.parse import SplitResult, urlsplit

import msgspec

from noria.cli.bench.request_timeline import BenchTimeline
from noria.cli.bench.targets.event_stream import DONE, CompletionChunk, EventStreamParser, StreamError
from noria.cli.bench.targets.http_connection import HttpConnection, HttpRequestError, connect
from noria.cli.bench.workload import BenchRequest
from noria.shared.errors import UserError

Endpoint = Literal["completions", "chat"]
_CHUNK_DECODER: Final = msgspec.json.Decoder(CompletionChunk)


class HttpTargetSettings(msgspec.Struct, frozen=True):
    """How an OpenAI-compatible server is asked.

    model: the first one that the server lists where empty. extra: more fields of each request's body.

    ignore_eos: ask, in vLLM's and llama.cpp's way, that answers go on to their full length.
    """

    url: str
    endpoint: Endpoint = "completions"
    model: str = ""
    temperature: float = 0.0
    ignore_eos: bool = True
    credential: str = ""
    extra: Mapping[str, object] = {}


class _ModelList(msgspec.Struct, frozen=True):
    class ModelCard(msgspec.Struct, frozen=True):
        id: str

    data: tuple[ModelCard, ...] = ()


class HttpTarget:
    """An OpenAI-compatible server. Connections are kept and reused."""

    def __init__(self, settings: HttpTargetSettings) -> None:
        self._settings = settings
        self._url = _base_url(settings.url)
        self._model = settings.model
        self._idle: list[HttpConnection] = []
        self._open: set[HttpConnection] = set()

    async def describe(self) -> str:
        """Return the model's name. Raises UserError when nothing answers."""
        if self._model:
            return self._model
        body = bytearray()
        try:
            connection = await self._new_connection()
            await connection.request(self._encode_request("GET", "/models", b""), body.extend)
            self._keep_if_usable(connection)
            self._model = msgspec.json.decode(bytes(body), type=_ModelList).data[0].id
        except (OSError, HttpRequestError, msgspec.DecodeError, IndexError) as error:
            raise UserError(f"{self._settings.url} does not name its models: {error}") from error
        return self._model

    async def answer(self, request: BenchRequest, timeline: BenchTimeline) -> None:
        """Send one request and record its answer."""
        reader = _AnswerReader(timeline)
        encoded = self._encode_request("POST", self._path, self._body(request))
        try:
            connection = self._idle_connection() or await self._new_connection()
            timeline.begun_s = timeline.begun_s or time.perf_counter()
            await self._send(connection, encoded, reader)
        except (OSError, HttpRequestError) as error:
            timeline.begun_s = timeline.begun_s or time.perf_counter()
            timeline.error = str(error) or type(error).__name__
        timeline.ended_s = time.perf_counter()
        if not timeline.error and not reader.complete:
            timeline.error = "the answer ended early"

    async def close(self) -> None:
        """Close all connections."""
        for connection in self._open:
            connection.close()
        self._open.clear()
        self._idle.clear()

    @property
    def _path(self) -> str:
        return "/chat/completions" if self._settings.endpoint == "chat" else "/completions"

    async def _send(self, connection: HttpConnection, request: bytes, reader: "_AnswerReader") -> None:
        """Send a request; once more when the server closed a kept connection just as it was used again."""
        kept = connection.received
        try:
            await connection.request(request, reader.feed)
        except HttpRequestError:
            if not kept or connection.received:
                raise
            self._open.discard(connection)
            connection = await self._new_connection()
            await connection.request(request, reader.feed)
        self._keep_if_usable(connection)

    def _idle_connection(self) -> HttpConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
            self._open.discard(connection)
        return None

    async def _new_connection(self) -> HttpConnection:
        connection = await connect(self._url)
        self._open.add(connection)
        return connection

    def _keep_if_usable(self, connection: HttpConnection) -> None:
        if connection.usable:
            self._idle.append(connection)
        else:
            self._open.discard(connection)

    def _body(self, request: BenchRequest) -> bytes:
        settings = self._settings
        body: dict[str, object] = {
            "model": self._model,
            "max_tokens": request.output_tokens,
            "temperature": settings.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if settings.endpoint == "chat":
            body["messages"] = [{"role": "user", "content": request.prompt}]
        else:
            body["prompt"] = request.prompt
        if settings.ignore_eos:
            body["ignore_eos"] = True
        return msgspec.json.encode({**body, **settings.extra})

    def _encode_request(self, method: str, path: str, body: bytes) -> bytes:
        url = self._url
        credential = self._settings.credential
        head = [
            f"{method} {url.path}{path} HTTP/1.1",
            f"host: {url.netloc.rpartition('@')[2]}",
            "accept: text/event-stream, application/json",
            "content-type: application/json",
            f"content-length: {len(body)}",
            *([f"authorization: Bearer {credential}"] if credential else []),
        ]
        return "\r\n".join(head).encode() + b"\r\n\r\n" + body


class _AnswerReader:
    """Parses one answer and records its pieces in a timeline."""

    def __init__(self, timeline: BenchTimeline) -> None:
        self.complete = False
        self._timeline = timeline
        self._events = EventStreamParser()

    def feed(self, data: bytes) -> None:
        """Parse a part of the body."""
        now_s = time.perf_counter()
        for event in self._events.feed(data):
            if event == DONE:
                self.complete = True
            else:
                self._read_chunk(event, now_s)

    def _read_chunk(self, event: bytes, now_s: float) -> None:
        timeline = self._timeline
        try:
            chunk = _CHUNK_DECODER.decode(event)
        except msgspec.DecodeError as error:
            timeline.error = f"not a chunk: {error}"
            return
        if chunk.error is not None:
            timeline.error = chunk.error.message if isinstance(chunk.error, StreamError) else chunk.error
        if chunk.usage is not None and chunk.usage.completion_tokens is not None:
            timeline.prompt_tokens = chunk.usage.prompt_tokens
            timeline.counted_tokens = chunk.usage.completion_tokens
            details = chunk.usage.prompt_tokens_details
            timeline.cached_tokens = (details.cached_tokens or 0) if details is not None else 0
        for choice in chunk.choices:
            if choice.has_output:
                timeline.arrivals.append(now_s)
            if choice.finish_reason:
                timeline.finish = choice.finish_reason


def _base_url(url: str) -> SplitResult:
    """Return the address that ends with /v1, which endpoints are appended to. Raises UserError."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    try:
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise UserError(f"{url!r} is not an http:// or https:// address")
    path = parts.path.rstrip("/")
    return parts._replace(path=path if path.endswith("/v1") else f"{path}/v1")
