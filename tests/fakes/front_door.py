"""A fake admission: a ROUTER socket that speaks the public mailbox's messages and answers as a script decides."""

import contextlib
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar

import msgspec
import zmq

from noria.proto.base import Alternative, End, Header, Logprobs
from noria.proto.frontdoor import (
    TO_ADMISSION,
    Accepted,
    Code,
    Delta,
    Describe,
    Description,
    Finished,
    Forecast,
    Generate,
    Identified,
    Identify,
    Ping,
    Pong,
    Preview,
    Rejected,
    Timings,
    Updates,
)
from noria.proto.wire import Codec

_T = TypeVar("_T", bound=msgspec.Struct)


@dataclass(frozen=True)
class Mail:
    """One message from a client."""

    client: bytes
    header: Header
    body: msgspec.Struct


Script = Callable[["FrontDoor", Mail], None]


def words(*parts: str, end: End = End.STOP, matched: str = "", detail: str = "", prompt_tokens: int = 7) -> Script:
    """A script that accepts each request and answers every choice with these parts, one token each."""

    def script(door: "FrontDoor", mail: Mail) -> None:
        if isinstance(mail.body, Generate):
            door.accept(mail, prompt_tokens)
            for index in range(mail.body.n):
                told = mail.body.sampling.logprobs is not None
                door.say(mail.client, mail.body.id, *parts, index=index, logprobs=told)
                door.finish(mail.client, mail.body.id, len(parts), end, index=index, matched=matched, detail=detail)

    return script


def refuse(code: Code, reason: str = "no", parameter: str = "", retry_after_ms: int | None = None) -> Script:
    """A script that refuses each request."""

    def script(door: "FrontDoor", mail: Mail) -> None:
        if isinstance(mail.body, Generate):
            door.send(mail.client, Rejected(mail.body.id, code, reason, parameter, retry_after_ms))

    return script


def silent(door: "FrontDoor", mail: Mail) -> None:
    """A script that answers nothing: the test sends everything itself."""


def logprobs_of(part: str, character: int) -> Logprobs:
    """Return the log-probabilities of one token: itself, and a part of a character that is half as likely."""
    return Logprobs(
        -0.5, part.encode(), character, (Alternative(1, part.encode(), -0.5), Alternative(2, b"\xf0", -1.25))
    )


class FrontDoor:
    """The fake admission, serving in its own thread; answers `Ping` and `Describe` itself unless `lively` is false."""

    def __init__(self, endpoint: str, script: Script = silent, *, lively: bool = True) -> None:
        self.endpoint = endpoint
        self.script = script
        self.lively = lively
        self.description = Description(models=("fake",), max_model_tokens=2048, started_unix_s=1_700_000_000)
        self.forecast: Callable[[Preview], Forecast] = lambda asked: Forecast(
            asked.request.id, True, asked.request.traffic_class or "standard", 7, 16, 1.0, 2.0, 3.0
        )
        self.incarnation = 0
        self.received: list[Mail] = []
        self.failure: BaseException | None = None
        self._codec = Codec(TO_ADMISSION)
        self._changed = threading.Condition()
        self._outbox: deque[tuple[bytes, msgspec.Struct, int]] = deque()
        self._stopping = False
        self._thread: threading.Thread | None = None

    def start(self) -> Self:
        """Bind and serve under a new incarnation."""
        self.incarnation = secrets.randbits(62) | 1
        self._stopping = False
        self._waker, self._wake = socket.socketpair()
        self._wake.setblocking(False)
        bound = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(bound,), daemon=True)
        self._thread.start()
        assert bound.wait(60)
        return self

    def stop(self) -> None:
        """Unbind; what was not sent is lost, as with a killed process."""
        if self._thread is None:
            return
        self._stopping = True
        self._waker.send(b"\0")
        self._thread.join(60)
        self._thread = None
        self._waker.close()
        self._wake.close()
        self._outbox.clear()
        if self.failure is not None:
            raise self.failure

    def restart(self, script: Script | None = None) -> None:
        """Stop and start again under a new incarnation, as after a crash."""
        self.stop()
        self.script = script or self.script
        self.start()

    def send(self, client: bytes, body: msgspec.Struct) -> None:
        """Send to one client; from any thread."""
        self._outbox.append((client, body, self.incarnation))
        with contextlib.suppress(OSError):
            self._waker.send(b"\0")

    def accept(self, mail: Mail, prompt_tokens: int = 7) -> None:
        """Accept a `Generate`."""
        assert isinstance(mail.body, Generate)
        seed = mail.body.sampling.seed
        self.send(mail.client, Accepted(mail.body.id, 1, prompt_tokens, "fake", 42 if seed is None else seed))

    def say(
        self,
        client: bytes,
        name: str,
        *parts: str,
        index: int = 0,
        attempt: int = 0,
        start: int = 0,
        characters: int = 0,
        logprobs: bool = False,
    ) -> None:
        """Send parts of text as tokens start, start + 1, … of one choice, in one message."""
        deltas = []
        for part in parts:
            told = (logprobs_of(part, characters),) if logprobs else ()
            deltas.append(Delta(name, index, attempt, start, (100 + start,), characters, part, told))
            start += 1
            characters += len(part)
        self.send(client, Updates(deltas=tuple(deltas)))

    def finish(
        self,
        client: bytes,
        name: str,
        output_tokens: int,
        end: End = End.STOP,
        *,
        index: int = 0,
        matched: str = "",
        detail: str = "",
        prompt_tokens: int = 7,
    ) -> None:
        """End one choice."""
        finished = Finished(
            name, index, end, prompt_tokens, output_tokens, matched, detail, Timings(1.0, 2.0, 3.0), cached_tokens=2
        )
        self.send(client, Updates(finished=(finished,)))

    def of(self, kind: type[_T]) -> list[_T]:
        """Return the bodies of one kind received so far."""
        return [mail.body for mail in list(self.received) if isinstance(mail.body, kind)]

    def wait_for(self, kind: type[_T], count: int = 1, timeout_s: float = 60.0) -> Mail:
        """Wait until `count` messages of a kind have come; returns the last of those."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while True:
                found = [mail for mail in self.received if isinstance(mail.body, kind)]
                if len(found) >= count:
                    return found[count - 1]
                left_s = deadline - time.monotonic()
                kinds = [mail.header.kind for mail in self.received]
                assert left_s > 0, f"{count} {kind.__name__} did not come; received: {kinds[-50:]}"
                self._changed.wait(left_s)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _serve(self, bound: threading.Event) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        router = context.socket(zmq.ROUTER)
        router.setsockopt(zmq.LINGER, 0)
        router.setsockopt(zmq.ROUTER_HANDOVER, 1)
        router.bind(self.endpoint)
        bound.set()
        poller = zmq.Poller()
        poller.register(router, zmq.POLLIN)
        poller.register(self._wake.fileno(), zmq.POLLIN)
        try:
            while not self._stopping:
                for source, _ in poller.poll(1000):
                    if source is router:
                        self._take(router)
                    else:
                        with contextlib.suppress(BlockingIOError):
                            self._wake.recv(4096)
                while self._outbox:
                    self._post(router, *self._outbox.popleft())
        except BaseException as error:  # told to the test by `stop`
            self.failure = error
        finally:
            router.close(0)
            context.term()

    def _take(self, router: "zmq.Socket[bytes]") -> None:
        client, *frames = router.recv_multipart()
        header = self._codec.header(frames)
        mail = Mail(client, header, self._codec.body(header, frames))
        assert header.sender == client.decode()
        if self.lively and isinstance(mail.body, Ping):
            self.send(client, Pong())
        if self.lively and isinstance(mail.body, Identify):
            if mail.body.credential == "nobody":
                self.send(mail.client, Rejected(mail.body.id, Code.UNAUTHORIZED, "unknown", "credential"))
            else:
                classes = ("standard",) if mail.body.credential == "user" else ("standard", "admin")
                self.send(mail.client, Identified(mail.body.id, "someone", classes, "standard"))
        if self.lively and isinstance(mail.body, Preview):
            self.send(mail.client, self.forecast(mail.body))
        if self.lively and isinstance(mail.body, Describe):
            self.send(client, self.description)
        self.script(self, mail)
        with self._changed:
            self.received.append(mail)
            self._changed.notify_all()

    def _post(self, router: "zmq.Socket[bytes]", client: bytes, body: msgspec.Struct, incarnation: int) -> None:
        header = Header(type(body).__name__, "admission", incarnation)
        router.send_multipart([client, *self._codec.encode(header, body)])
