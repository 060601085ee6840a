"""Prompts become token ids off the actor's loop, in a few threads shared fairly among clients and classes.

Decides whose text is next. A quarter of a million tokens take seconds, during which nobody else's short prompt may
wait: each owner's share is counted in characters, and one thread takes only short texts. The library and the template
engine release the interpreter lock or run briefly. What waits is bounded by the core.
"""

import heapq
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from noria.proto.frontdoor import Code
from noria.services.admission.core.state.events import TokenizeJob
from noria.shared.model.chat_template import ChatTemplate, TemplateError
from noria.shared.model.tokenizer import Tokenizer

THREADS: Final = 2
LONG_CHARACTERS: Final = 32_768  # some 20 ms of work
_SERVED_KEPT: Final = 1024


@dataclass(frozen=True, slots=True)
class TokenizeResult:
    """The ids of a job's text, or what was wrong with it. Durations in seconds."""

    job: TokenizeJob
    ids: tuple[int, ...]
    problem: str
    parameter: str
    code: Code
    worked_s: float


class FairTokenizeQueue:
    """Jobs of many clients, in the order of the characters each has been served (start-time fair queueing, Goyal 1996).

    A client that comes back from idle starts at the present, with neither credit nor debt from long ago.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, deque[TokenizeJob]] = {}
        self._order: list[tuple[int, int, str]] = []
        self._served: dict[str, int] = {}
        self._clock = 0
        self._count = 0

    def push(self, job: TokenizeJob) -> None:
        """Add a job at the end of its client's."""
        queue = self._waiting.setdefault(job.owner, deque())
        queue.append(job)
        if len(queue) == 1:
            self._enter(job.owner, max(self._clock, self._served.get(job.owner, 0)))

    def pop(self) -> TokenizeJob | None:
        """The next job, or None."""
        if not self._order:
            return None
        self._clock, _, client = heapq.heappop(self._order)
        queue = self._waiting[client]
        job = queue.popleft()
        self._served[client] = self._clock + max(job.characters, 1)
        if queue:
            self._enter(client, self._served[client])
        else:
            del self._waiting[client]
        if len(self._served) > _SERVED_KEPT:
            self._served = {name: until for name, until in self._served.items() if until > self._clock}
        return job

    def remove(self, job: TokenizeJob) -> None:
        """Take out a job that waits; one that does not is ignored."""
        queue = self._waiting.get(job.owner)
        if queue is None or job not in queue:
            return
        queue.remove(job)
        if not queue:
            del self._waiting[job.owner]
            self._order = [entry for entry in self._order if entry[2] != job.owner]
            heapq.heapify(self._order)

    def __len__(self) -> int:
        return sum(len(queue) for queue in self._waiting.values())

    def _enter(self, client: str, start: int) -> None:
        self._count += 1
        heapq.heappush(self._order, (start, self._count, client))


class TokenizerPool:
    """The worker threads and what waits for them. All methods belong to the actor's thread; `wake` is thread-safe."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, wake: Callable[[], None]) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._wake = wake
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="tokenize")
        self._short = FairTokenizeQueue()
        self._long = FairTokenizeQueue()
        self._jobs: dict[int, TokenizeJob] = {}
        self._working: dict[int, bool] = {}
        self._done: deque[TokenizeResult] = deque()

    def submit(self, job: TokenizeJob) -> None:
        """Have a job done; its result comes out of `collect` some turns later."""
        self._jobs[job.number] = job
        self._lane(job).push(job)
        self._dispatch()

    def abandon(self, number: int) -> None:
        """Drop a job that waits. A job under way is finished, and `collect` returns its result all the same."""
        job = self._jobs.pop(number, None)
        if job is not None:
            self._lane(job).remove(job)

    def collect(self) -> list[TokenizeResult]:
        """Results since the last call; free threads get new work."""
        results = []
        while self._done:
            result = self._done.popleft()
            del self._working[result.job.number]
            results.append(result)
        self._dispatch()
        return results

    def counts(self) -> dict[str, int]:
        """The numbers of jobs waiting and under way."""
        return {"waiting": len(self._jobs), "working": len(self._working)}

    def close(self) -> None:
        """Stop the threads; what they are at is finished and dropped."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _lane(self, job: TokenizeJob) -> FairTokenizeQueue:
        return self._long if job.characters > LONG_CHARACTERS else self._short

    def _dispatch(self) -> None:
        while len(self._working) < THREADS:
            long_allowed = sum(self._working.values()) < THREADS - 1
            job = (self._long.pop() if long_allowed else None) or self._short.pop()
            if job is None:
                return
            del self._jobs[job.number]
            self._working[job.number] = job.characters > LONG_CHARACTERS
            self._threads.submit(self._work, job)

    def _work(self, job: TokenizeJob) -> None:
        began_s = time.monotonic()
        ids: tuple[int, ...] = ()
        problem, code = "", Code.INVALID
        parameter = "prompt" if job.messages is None else "messages"
        try:
            if job.messages is not None:
                ids = tuple(self._template.render_ids(job.messages))
            else:
                ids = tuple(self._tokenizer.encode(job.prompt or ""))
        except TemplateError as error:
            problem = str(error)[:512]
        except Exception as error:  # a thread's edge: the library raises bare Exception for text it cannot take
            problem, code = f"the text could not be tokenized ({type(error).__name__})", Code.INTERNAL
        self._done.append(TokenizeResult(job, ids, problem, parameter, code, time.monotonic() - began_s))
        self._wake()
