"""A streamed answer whose reader does not read: nothing is piled up for it, and nobody else waits."""

import asyncio
from collections.abc import Sequence

from starlette.types import Message

from noria.client import Completion, Delta
from noria.client.results import Choice, Finish
from noria.services.gateway.api.answering import EventStream, RequestOutcome
from noria.services.gateway.api.event_stream import parse_positions
from noria.services.gateway.api.response_bodies import CompletionFormat, ResponseSpec

WORDS = [f"word{number} " for number in range(100)]
MANY_TURNS = 1000


class Spoken:
    """A generation that has said everything already."""

    def __init__(self) -> None:
        self.asked = 0

    async def next(self) -> Delta | None:
        self.asked += 1
        if self.asked > len(WORDS):
            return None
        place = self.asked - 1
        finish = Finish("length") if self.asked == len(WORDS) else None
        return Delta(0, WORDS[place], (place,), place, sum(map(len, WORDS[:place])), finish=finish)

    async def result(self) -> Completion:
        return Completion("x", None, (Choice(0, "".join(WORDS), tuple(range(len(WORDS))), Finish("length")),))

    def leave(self) -> None:
        """Nothing is held."""


class Connection:
    """Takes so many messages, and others only once it is read."""

    def __init__(self, room: int) -> None:
        self.begun: list[Message] = []
        self.read = asyncio.Event()
        self._room = room

    async def send(self, message: Message) -> None:
        self.begun.append(message)
        if len(self.begun) > self._room:
            await self.read.wait()


def stream(source: Spoken) -> EventStream:
    spec = ResponseSpec(CompletionFormat(), "text-1", "text-1", 0, 1)
    return EventStream(spec, [source], "tiny", parse_positions("", 1), RequestOutcome())


def said(messages: Sequence[Message]) -> str:
    return b"".join(message.get("body", b"") for message in messages).decode()


async def stalled() -> tuple[Spoken, Connection, "asyncio.Task[None]"]:
    """A stream that has been under way for long, to a reader who takes two messages."""
    source, connection = Spoken(), Connection(2)
    running = asyncio.create_task(stream(source).run(connection.send))
    for _ in range(MANY_TURNS):
        await asyncio.sleep(0)
    return source, connection, running


def test_for_a_reader_that_does_not_read_one_message_waits_and_what_follows_is_left_to_merge() -> None:
    async def run() -> None:
        source, connection, running = await stalled()
        assert len(connection.begun) == 3
        assert source.asked <= 3
        connection.read.set()
        await running
        text = said(connection.begun)
        assert all(word in text for word in WORDS) and text.endswith("data: [DONE]\n\n")

    asyncio.run(run())


def test_a_reader_that_does_not_read_holds_up_no_other() -> None:
    async def run() -> None:
        _, _, waiting = await stalled()
        other = Connection(1000)
        await asyncio.wait_for(stream(Spoken()).run(other.send), 30)
        assert WORDS[-1] in said(other.begun)
        waiting.cancel()

    asyncio.run(run())
