"""Handles what admission and the detokenizer say about streams: new ones, ended ones, how far they are, what they lack."""

from noria.proto.base import End, Ended, Stream
from noria.proto.output import Progress, Resend, TokenRun
from noria.proto.scheduling import Submission, Submit, Withdraw
from noria.services.scheduler.core.state.cache_memory import mark_oversized
from noria.services.scheduler.core.state.request import Request, RequestStatus, make_request
from noria.services.scheduler.core.state.scheduler_state import SchedulerState
from noria.services.scheduler.core.step.request_lifecycle import RequestLifecycle


class StreamHandler:
    """Applies messages about streams to the scheduler's state.

    submitted_now: the requests that the last `Submit` brought. names_complete: admission has named all its streams since it joined.
    """

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._lifecycle = RequestLifecycle(state)
        self._taken = 0
        self.submitted_now: list[Request] = []
        self.names_complete = False
        self._unnamed: dict[Stream, None] = {}

    def admission_joined(self) -> None:
        """Expect admission to name all its streams anew; until that is complete, those it has not named may have ended."""
        self._unnamed = dict.fromkeys(self._state.requests)
        self.names_complete = False

    def submit(self, now_ns: int, body: Submit) -> None:
        """Take new streams; one known with the same or a higher attempt is ignored, a lower one is replaced."""
        self.submitted_now = []
        served: list[Request] = []
        for submission in body.submissions:
            self._unnamed.pop(submission.stream, None)
            known = self._state.requests.get(submission.stream)
            if known is not None:
                if known.attempt >= submission.attempt:
                    continue
                self._lifecycle.forget(known, now_ns, "replaced", reclaim=False)
            request = self._take(now_ns, submission)
            if known is None and submission.service > 0:
                served.append(request)
        # Only now, or those named first would lift those named after them.
        for request in served:
            self._state.policy.carried(request)
        if body.complete:
            self.ended(now_ns, Ended(tuple(self._unnamed)))
            self._unnamed.clear()
            self.names_complete = True

    def withdraw(self, now_ns: int, body: Withdraw) -> None:
        """Drop these streams and report when their blocks are back; unknown ones have crossed their end on the way."""
        for request in self._known(body.streams):
            self._lifecycle.forget(request, now_ns, body.end.label, reclaim=True)

    def ended(self, now_ns: int, body: Ended) -> None:
        """Drop these streams; of those that still ran, report when their blocks are back."""
        for request in self._known(body.streams):
            self._lifecycle.forget(request, now_ns, "ended", reclaim=request.state is not RequestStatus.FINISHED)

    def progress(self, body: Progress) -> None:
        """Note how many output ids of each stream the detokenizer has looked at."""
        for each in body.seen:
            request = self._state.requests.get(each.stream)
            if request is not None and each.start > request.progress.seen:
                request.progress.seen = each.start

    def resend(self, body: Resend) -> None:
        """Send the ids from `start` again, with the end if there is one; a run without either says where the stream stands."""
        for gap in body.gaps:
            request = self._state.requests.get(gap.stream)
            if request is not None and gap.start <= len(request.progress.output):
                self._state.replies.append(token_run(request, gap.start, tuple(request.progress.output[gap.start :])))

    def expire(self, now_ns: int) -> None:
        """End every request that is out of time: waiting ones at once, running ones at the boundary between two steps."""
        for request in self._state.deadlines.expired(now_ns):
            whole = request.asked.deadline_ns is not None and request.asked.deadline_ns <= now_ns
            detail = "not finished within ttl_ms" if whole else "no token within ttl_first_ms"
            self._lifecycle.finish(request, End.DEADLINE, now_ns, detail)
            self._state.replies.append(token_run(request, len(request.progress.output), ()))

    def fail(self, request: Request, now_ns: int, detail: str) -> None:
        """End a stream with an error."""
        self._lifecycle.finish(request, End.ERROR, now_ns, detail)
        self._state.replies.append(token_run(request, len(request.progress.output), ()))

    def measure(self, request: Request, now_ns: int) -> None:
        """Set a waiting request's limit by the present executor; end it at once when it is over or can never fit."""
        geometry, cache = self._state.geometry, self._state.cache
        wanted = request.asked.submission.sampling.max_tokens
        if geometry is None or cache is None:
            request.progress.limit = 1 << 62 if wanted is None else wanted
        else:
            left = geometry.max_model_tokens - request.asked.prompt_tokens
            request.progress.limit = left if wanted is None else min(wanted, left)
            if wanted is None:
                request.progress.limit = min(left, cache.largest_tokens - request.asked.prompt_tokens)
        problem = self._problem(request)
        if problem:
            self.fail(request, now_ns, problem)
            return
        end = request.natural_end
        if end is not None:
            self._lifecycle.finish(request, end, now_ns)
            self._state.replies.append(token_run(request, len(request.progress.output), ()))

    def _known(self, streams: tuple[Stream, ...]) -> list[Request]:
        requests = self._state.requests
        return [requests[stream] for stream in dict.fromkeys(streams) if stream in requests]

    def _take(self, now_ns: int, submission: Submission) -> Request:
        self._taken += 1
        request = make_request(submission, now_ns, self._taken)
        self._state.requests[request.stream] = request
        self._state.deadlines.watch(request)
        self.submitted_now.append(request)
        doubt = submission.doubt
        if doubt is not None and len(request.progress.output) <= doubt.output_tokens:
            self._state.suspects.resume(request, doubt)
        self._lifecycle.wait(request, now_ns)
        self.measure(request, now_ns)
        return request

    def _problem(self, request: Request) -> str:
        geometry, cache = self._state.geometry, self._state.cache
        if not request.asked.prompt_tokens:
            return "the prompt has no tokens"
        if geometry is None or cache is None:
            return ""
        if request.progress.limit <= 0 and not request.progress.output:
            return (
                f"a prompt of {request.asked.prompt_tokens} tokens leaves no room for output: the context has "
                f"{geometry.max_model_tokens} and the cache {cache.largest_tokens} tokens"
            )
        needed = request.asked.prompt_tokens + request.progress.limit
        if cache.largest_tokens < needed <= cache.whole_tokens:
            mark_oversized(request, oversized=True)  # accepted before so much was kept for isolated classes
        elif needed > cache.largest_tokens:
            return (
                f"prompt and output of {request.asked.prompt_tokens} + {request.progress.limit} tokens can never fit into the cache, "
                f"which holds {cache.largest_tokens}"
            )
        return ""


def token_run(request: Request, start: int, ids: tuple[int, ...]) -> TokenRun:
    """A run of a request's output, with its end if it has one."""
    end, cached = request.life.end or 0, request.cache.cached_tokens
    logprobs = request.logprobs_from(start) if ids else ()
    return TokenRun(
        request.stream, request.attempt, start, ids, end, request.life.detail, cached, request.life.queue_us, logprobs
    )
