"""The ledger: every request admission answers for, what each of its choices has emitted, and how it ended.

State changes only by facts, each entered once and in order: reserved, accepted, emitted, truncated, ended, forgotten.
`UnsavedChanges` knows which of them the journal lacks. The ledger knows nothing of clients, sockets or load.
"""

from array import array
from collections import deque
from collections.abc import Iterator, Sequence

from noria.proto.base import End, Logprobs, Stream
from noria.services.admission.core.ledger.request import ChoiceRecord, Request, RequestKey, RequestStage


class Ledger:
    """All requests by number and by key. `retained` are ended ones that nobody has acknowledged, oldest first."""

    def __init__(self, first_number: int) -> None:
        self.requests: dict[int, Request] = {}
        self.keys: dict[RequestKey, Request] = {}
        self.tokenizing: dict[int, Request] = {}
        self.live: dict[int, Request] = {}
        self.retained: deque[tuple[int, int]] = deque()
        self.streams = 0
        self._next = first_number

    def draw_number(self) -> int:
        """The next request number; never the same twice in the life of a journal."""
        self._next += 1
        return self._next - 1

    def over(self, stream: Stream) -> bool:
        """Whether a stream ended for good, in this process or an earlier one. False for numbers not given out yet."""
        number = stream.request
        return number < self._next and number not in self.tokenizing and self.choice(stream) is None

    def reserve(self, request: Request) -> None:
        """Add a received request in the stage TOKENIZING, and reserve its key."""
        assert request.key not in self.keys and request.stage is RequestStage.TOKENIZING
        self.requests[request.number] = self.keys[request.key] = self.tokenizing[request.number] = request

    def accept(self, request: Request, prompt: Sequence[int], choices: list[ChoiceRecord], now_ns: int) -> None:
        """Move a request from TOKENIZING to LIVE, with its prompt ids and choices."""
        assert request.stage is RequestStage.TOKENIZING
        del self.tokenizing[request.number]
        request.stage = RequestStage.LIVE
        request.prompt = array("i", prompt)
        request.prompt_tokens = len(prompt)
        request.choices = choices
        request.accepted_ns = now_ns
        request.unfinished = len(choices)
        self.live[request.number] = request
        self.streams += len(choices)

    def readmit(self, request: Request) -> None:
        """Add a request from the journal, with its choices, as LIVE or, if all its choices have ended, as ENDED."""
        assert request.key not in self.keys and request.choices
        self.requests[request.number] = self.keys[request.key] = request
        self._next = max(self._next, request.number + 1)
        request.unfinished = sum(choice.end is None for choice in request.choices)
        if request.unfinished:
            request.stage = RequestStage.LIVE
            self.live[request.number] = request
            self.streams += request.unfinished
        else:
            request.stage = RequestStage.ENDED
            request.prompt = array("i")

    def emit(
        self, choice: ChoiceRecord, ids: Sequence[int], text: str, now_ns: int, logprobs: Sequence[Logprobs] = ()
    ) -> None:
        """Append ids and text to a stream; logprobs: one for each id, if the stream asks for them."""
        assert choice.end is None and len(logprobs) == (0 if choice.sampling.logprobs is None else len(ids))
        if ids and choice.first_token_ns is None:
            choice.first_token_ns = now_ns
        choice.ids.extend(ids)
        choice.text.append(text)
        choice.logprobs.extend(logprobs)

    def truncate(self, choice: ChoiceRecord, attempt: int, ids: int, characters: int) -> None:
        """Begin a new attempt of a stream, which keeps so many ids and characters."""
        assert choice.end is None and attempt > choice.attempt
        choice.attempt = attempt
        del choice.ids[ids:], choice.logprobs[ids:]
        choice.text.truncate(characters)

    def end(
        self, request: Request, choice: ChoiceRecord, end: End, now_ns: int, *, matched: str = "", detail: str = ""
    ) -> None:
        """Enter the end of a stream. It must not have ended before."""
        assert choice.end is None and request.stage is RequestStage.LIVE
        choice.end, choice.matched, choice.detail, choice.ended_ns = end, matched, detail, now_ns
        request.unfinished -= 1
        self.streams -= 1
        if request.unfinished == 0:
            request.stage = RequestStage.ENDED
            request.prompt = array("i")
            del self.live[request.number]

    def retain(self, request: Request, until_ns: int) -> None:
        """Keep an ended request until `until_ns`, so that a client can still attach to it."""
        assert request.stage is RequestStage.ENDED
        self.retained.append((until_ns, request.number))

    def forget(self, request: Request) -> None:
        """Remove a request that nobody can ask for any more. It must not be running."""
        assert request.stage is not RequestStage.LIVE
        del self.requests[request.number], self.keys[request.key]
        self.tokenizing.pop(request.number, None)

    def choice(self, stream: Stream) -> tuple[Request, ChoiceRecord] | None:
        """The request and choice of an unfinished stream; None if it has ended or is not known."""
        request = self.live.get(stream.request)
        if request is None or not 0 <= stream.choice < len(request.choices):
            return None
        choice = request.choices[stream.choice]
        return (request, choice) if choice.end is None else None

    def unfinished(self) -> Iterator[tuple[Request, ChoiceRecord]]:
        """Every stream that has not ended, oldest request first."""
        for request in self.live.values():
            for choice in request.choices:
                if choice.end is None:
                    yield request, choice

    def check(self) -> None:
        """Assert that the indexes agree with one another."""
        assert len(self.keys) == len(self.requests)
        open_streams = 0
        for number, request in self.requests.items():
            assert request.number == number and self.keys[request.key] is request and number < self._next
            unfinished = sum(choice.end is None for choice in request.choices)
            open_streams += unfinished
            assert (number in self.tokenizing) is (request.stage is RequestStage.TOKENIZING)
            assert (number in self.live) is (request.stage is RequestStage.LIVE)
            match request.stage:
                case RequestStage.TOKENIZING:
                    assert not request.choices and not request.prompt
                case RequestStage.LIVE:
                    assert request.unfinished == unfinished > 0 and len(request.prompt) == request.prompt_tokens
                case RequestStage.ENDED:
                    assert request.unfinished == unfinished == 0 and not request.prompt
        assert len(self.live) + len(self.tokenizing) <= len(self.requests)
        assert open_streams == self.streams
        waiting = {number for _, number in self.retained}
        assert all(
            number in waiting for number, request in self.requests.items() if request.stage is RequestStage.ENDED
        )
