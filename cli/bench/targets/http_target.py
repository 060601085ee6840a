"""Any OpenAI-compatible server as the target: streamed completions or chat completions over kept connections."""

import time
from collections.abc import Mapping
from typing import Final, Literal
from urllib.parse import SplitResult, urlsplit

import msgspec

from noria.cli.bench.request_timeline import Observed
from noria.cli.bench.targets.event_stream import DONE, Chunk, EventReader, Fault
from noria.cli.bench.targets.http_connection import HttpConnection, HttpFault, connect
from noria.cli.bench.workload import Job
from noria.shared.errors import UserError

Endpoint = Literal["completions", "chat"]
_CHUNKS: Final = msgspec.json.Decoder(Chunk)


class HttpSettings(msgspec.Struct, frozen=True):
    """How to ask. model: the first one that the server lists where empty. extra: more fields of each request's body.

    ignore_eos: ask, in vLLM's and llama.cpp's way, that answers go on to their full length.
    """

    url: str
    endpoint: Endpoint = "completions"
    model: str = ""
    temperature: float = 0.0
    ignore_eos: bool = True
    credential: str = ""
    extra: Mapping[str, object] = {}


class _Models(msgspec.Struct, frozen=True):
    class Entry(msgspec.Struct, frozen=True):
        id: str

    data: tuple[Entry, ...] = ()


class HttpTarget:
    """One server. Connections are kept and reused."""

    def __init__(self, settings: HttpSettings) -> None:
        self._settings = settings
        self._url = _base(settings.url)
        self._model = settings.model
        self._idle: list[HttpConnection] = []
        self._open: set[HttpConnection] = set()

    async def describe(self) -> str:
        """The model's name. Raises UserError when nothing answers."""
        if self._model:
            return self._model
        body = bytearray()
        try:
            connection = await self._connection()
            await connection.ask(self._request("GET", "/models", b""), body.extend)
            self._keep(connection)
            self._model = msgspec.json.decode(bytes(body), type=_Models).data[0].id
        except (OSError, HttpFault, msgspec.DecodeError, IndexError) as error:
            raise UserError(f"{self._settings.url} does not name its models: {error}") from error
        return self._model

    async def answer(self, job: Job, observed: Observed) -> None:
        """Send one request and note what comes."""
        reader = _Reader(observed)
        request = self._request("POST", self._path, self._body(job))
        try:
            connection = self._kept() or await self._connection()
            observed.begun_s = observed.begun_s or time.perf_counter()
            await self._ask(connection, request, reader)
        except (OSError, HttpFault) as error:
            observed.begun_s = observed.begun_s or time.perf_counter()
            observed.error = str(error) or type(error).__name__
        observed.ended_s = time.perf_counter()
        if not observed.error and not reader.complete:
            observed.error = "the answer ended early"

    async def close(self) -> None:
        """Close all connections."""
        for connection in self._open:
            connection.close()
        self._open.clear()
        self._idle.clear()

    @property
    def _path(self) -> str:
        return "/chat/completions" if self._settings.endpoint == "chat" else "/completions"

    async def _ask(self, connection: HttpConnection, request: bytes, reader: "_Reader") -> None:
        """A server may close a kept connection just when it is used again: then the request is sent once more."""
        kept = connection.heard
        try:
            await connection.ask(request, reader.feed)
        except HttpFault:
            if not kept or connection.heard:
                raise
            self._open.discard(connection)
            connection = await self._connection()
            await connection.ask(request, reader.feed)
        self._keep(connection)

    def _kept(self) -> HttpConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
            self._open.discard(connection)
        return None

    async def _connection(self) -> HttpConnection:
        connection = await connect(self._url)
        self._open.add(connection)
        return connection

    def _keep(self, connection: HttpConnection) -> None:
        if connection.usable:
            self._idle.append(connection)
        else:
            self._open.discard(connection)

    def _body(self, job: Job) -> bytes:
        settings = self._settings
        body: dict[str, object] = {
            "model": self._model,
            "max_tokens": job.output_tokens,
            "temperature": settings.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if settings.endpoint == "chat":
            body["messages"] = [{"role": "user", "content": job.prompt}]
        else:
            body["prompt"] = job.prompt
        if settings.ignore_eos:
            body["ignore_eos"] = True
        return msgspec.json.encode({**body, **settings.extra})

    def _request(self, method: str, path: str, body: bytes) -> bytes:
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


class _Reader:
    """Notes the pieces of one answer."""

    def __init__(self, observed: Observed) -> None:
        self.complete = False
        self._observed = observed
        self._events = EventReader()

    def feed(self, data: bytes) -> None:
        """Take a part of the body."""
        now_s = time.perf_counter()
        for event in self._events.feed(data):
            if event == DONE:
                self.complete = True
            else:
                self._note(event, now_s)

    def _note(self, event: bytes, now_s: float) -> None:
        observed = self._observed
        try:
            chunk = _CHUNKS.decode(event)
        except msgspec.DecodeError as error:
            observed.error = f"not a chunk: {error}"
            return
        if chunk.error is not None:
            observed.error = chunk.error.message if isinstance(chunk.error, Fault) else chunk.error
        if chunk.usage is not None and chunk.usage.completion_tokens is not None:
            observed.prompt_tokens = chunk.usage.prompt_tokens
            observed.counted_tokens = chunk.usage.completion_tokens
            details = chunk.usage.prompt_tokens_details
            observed.cached_tokens = (details.cached_tokens or 0) if details is not None else 0
        for choice in chunk.choices:
            if choice.brings_output:
                observed.arrivals.append(now_s)
            if choice.finish_reason:
                observed.finish = choice.finish_reason


def _base(url: str) -> SplitResult:
    """The address under which /completions lies. Raises UserError."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    try:
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise UserError(f"{url!r} is not an http:// or https:// address")
    path = parts.path.rstrip("/")
    return parts._replace(path=path if path.endswith("/v1") else f"{path}/v1")
