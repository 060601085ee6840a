"""Outboxes for the scheduler and the detokenizer: they collect what a turn changes, and make few messages of it.

Everything is keyed by stream, so what waits is bounded by the streams that live. What a full socket does not take is
put back. Nothing is queued for a peer that has not joined: when it joins it is sent every unfinished stream, and a mark
after the last one, so that it drops streams whose end it missed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from noria.proto.base import End, Ended, Stream
from noria.proto.output import Gap, Open, Opening, Resend
from noria.proto.scheduling import Accounted, Doubt, Submission, Submit, Withdraw
from noria.services.admission.core.forecast.scheduler_credit import SchedulerCredit
from noria.services.admission.core.ledger.request import ChoiceRecord, Request
from noria.services.admission.core.tenants.admission_limits import AdmissionLimits

ToScheduler = Submit | Withdraw | Ended | Accounted
ToDetokenizer = Open | Ended | Resend
RequestChoice = tuple[Request, ChoiceRecord]


@dataclass(slots=True, eq=False)
class SchedulerOutbox:
    """Messages for the scheduler that the next turn sends. doubts: whom the last one suspected; the next one goes on from there."""

    limits: AdmissionLimits
    credit: SchedulerCredit
    joined: bool = False
    submissions: dict[Stream, RequestChoice] = field(default_factory=dict)
    withdrawals: dict[Stream, End] = field(default_factory=dict)
    ended: dict[Stream, None] = field(default_factory=dict)
    complete_due: bool = False
    accounted: Accounted | None = None
    doubts: Mapping[Stream, Doubt] = field(default_factory=dict)

    def join(self, unfinished: Iterable[RequestChoice]) -> None:
        """Queue every unfinished stream, and nothing else, for a scheduler that has started."""
        self.leave()
        self.joined = self.complete_due = True
        for request, choice in unfinished:
            self.submit(request, choice)

    def leave(self) -> None:
        """Drop everything queued: the scheduler has died."""
        self.joined = self.complete_due = False
        self.accounted = None
        for request, _ in self.submissions.values():
            self.credit.unqueue(request.prompt_tokens, request.traffic_class)
        self.credit.reset()
        self.submissions.clear()
        self.withdrawals.clear()
        self.ended.clear()

    def submit(self, request: Request, choice: ChoiceRecord) -> None:
        """Have a stream scheduled."""
        if self.joined:
            self.submissions[choice.stream] = (request, choice)
            self.credit.queue(request.prompt_tokens, request.traffic_class)

    def end(self, request: Request, stream: Stream, withdraw: End | None) -> bool:
        """A stream ended; `withdraw`: the scheduler does not know yet and may be running it. Returns whether it was ever sent it."""
        if not self.joined:
            return False
        pending = self.submissions.pop(stream, None)
        if pending is not None:
            self.credit.unqueue(request.prompt_tokens, request.traffic_class)
            if not pending[1].attempt:
                return False  # else an earlier attempt may run there
        if withdraw is not None:
            self.withdrawals[stream] = withdraw
        self.ended[stream] = None
        return True

    def take(self, now_ns: int) -> list[ToScheduler]:
        """The messages of this turn, in the order in which they must be sent."""
        messages: list[ToScheduler] = []
        if self.submissions or self.complete_due:
            batch: list[Submission] = []
            tokens = 0
            for request, choice in self.submissions.values():
                self.credit.send(request.prompt_tokens, request.traffic_class)
                batch.append(_submission(request, choice, self.limits, now_ns, self.doubts.get(choice.stream)))
                tokens += request.prompt_tokens + len(choice.ids)
                if tokens >= self.limits.batch_tokens_max:
                    messages.append(Submit(tuple(batch)))
                    batch, tokens = [], 0
            if batch or self.complete_due:
                messages.append(Submit(tuple(batch), complete=self.complete_due))
            self.submissions.clear()
            self.complete_due = False
        messages.extend(
            Withdraw(tuple(stream for stream, why in self.withdrawals.items() if why is end), end)
            for end in dict.fromkeys(self.withdrawals.values())
        )
        if self.ended:
            messages.append(Ended(tuple(self.ended)))
        if self.accounted is not None:
            messages.append(self.accounted)
        self.accounted = None
        self.withdrawals.clear()
        self.ended.clear()
        return messages

    def restore(self, message: ToScheduler, pairs: Mapping[Stream, RequestChoice]) -> None:
        """A message was not taken. Messages must be restored last first. `pairs`: the streams that live."""
        match message:
            case Submit():
                for submission in reversed(message.submissions):
                    self.credit.unsend(len(submission.prompt_ids), submission.traffic_class)
                again = {each.stream: pairs[each.stream] for each in message.submissions}
                self.submissions = again | self.submissions
                self.complete_due = self.complete_due or message.complete
            case Accounted():
                self.accounted = self.accounted or message
            case Withdraw():
                self.withdrawals = {**dict.fromkeys(message.streams, message.end), **self.withdrawals}
            case Ended():
                self.ended = {**dict.fromkeys(message.streams), **self.ended}


@dataclass(slots=True, eq=False)
class DetokenizerOutbox:
    """Messages for the detokenizer that the next turn sends."""

    limits: AdmissionLimits
    joined: bool = False
    openings: dict[Stream, RequestChoice] = field(default_factory=dict)
    gaps: dict[Stream, ChoiceRecord] = field(default_factory=dict)
    ended: dict[Stream, None] = field(default_factory=dict)
    complete_due: bool = False

    def join(self, unfinished: Iterable[RequestChoice]) -> None:
        """A new detokenizer: every unfinished stream is opened again."""
        self.leave()
        self.joined = self.complete_due = True
        for request, choice in unfinished:
            self.open(request, choice)

    def leave(self) -> None:
        """Drop everything queued: the detokenizer has died."""
        self.joined = self.complete_due = False
        self.openings.clear()
        self.gaps.clear()
        self.ended.clear()

    def open(self, request: Request, choice: ChoiceRecord) -> None:
        """Have a stream opened, or opened again."""
        if self.joined:
            self.openings[choice.stream] = (request, choice)

    def resend(self, choice: ChoiceRecord) -> None:
        """Ask for everything after what the ledger has of a stream."""
        if self.joined:
            self.gaps[choice.stream] = choice

    def end(self, stream: Stream) -> None:
        """Tell scheduler and detokenizer that a stream has ended."""
        if not self.joined:
            return
        self.gaps.pop(stream, None)
        self.openings.pop(stream, None)
        self.ended[stream] = None

    def take(self) -> list[ToDetokenizer]:
        """The messages of this turn, in the order in which they must be sent."""
        messages: list[ToDetokenizer] = []
        batch: list[Opening] = []
        tokens = 0
        for request, choice in self.openings.values():
            batch.append(_opening(request, choice, self.limits))
            tokens += self.limits.prompt_tail_tokens + len(choice.ids)
            if tokens >= self.limits.batch_tokens_max:
                messages.append(Open(tuple(batch)))
                batch, tokens = [], 0
        if batch or self.complete_due:
            messages.append(Open(tuple(batch), complete=self.complete_due))
        self.complete_due = False
        if self.gaps:
            messages.append(Resend(tuple(Gap(stream, len(choice.ids)) for stream, choice in self.gaps.items())))
        if self.ended:
            messages.append(Ended(tuple(self.ended)))
        self.openings.clear()
        self.gaps.clear()
        self.ended.clear()
        return messages

    def restore(self, message: ToDetokenizer, pairs: Mapping[Stream, RequestChoice]) -> None:
        """A message was not taken. `pairs`: the streams that live."""
        match message:
            case Open():
                self.openings = {each.stream: pairs[each.stream] for each in message.openings} | self.openings
                self.complete_due = self.complete_due or message.complete
            case Resend():
                self.gaps = {each.stream: pairs[each.stream][1] for each in message.gaps} | self.gaps
            case Ended():
                self.ended = {**dict.fromkeys(message.streams), **self.ended}


def _left_ms(deadline_ns: int | None, now_ns: int) -> int | None:
    return None if deadline_ns is None else max((deadline_ns - now_ns) // 1_000_000, 0)


def _served(request: Request, choice: ChoiceRecord, limits: AdmissionLimits) -> float:
    """The service that an earlier scheduler charged a stream for, in priced tokens: its prompt and output so far."""
    if not choice.ids:
        return 0.0
    computed = request.prompt_tokens - choice.cached_tokens
    return (
        computed * limits.prompt_price
        + choice.cached_tokens * limits.cached_price
        + len(choice.ids) * limits.output_price
    )


def _submission(
    request: Request, choice: ChoiceRecord, limits: AdmissionLimits, now_ns: int, doubt: Doubt | None = None
) -> Submission:
    first_ns = request.deadline_first_ns if choice.first_token_ns is None else None
    return Submission(
        stream=choice.stream,
        attempt=choice.attempt,
        prompt_ids=tuple(request.prompt),
        sampling=choice.sampling,
        end_ids=request.end_ids,
        has_stop_strings=bool(choice.sampling.stop),
        output_ids=tuple(choice.ids),
        tenant=request.key.tenant,
        salt=request.key.tenant.encode(),
        traffic_class=request.traffic_class,
        ttl_first_ms=_left_ms(first_ns, now_ns),
        ttl_ms=_left_ms(request.deadline_ns, now_ns),
        seniority_ms=(now_ns - request.accepted_ns) // 1_000_000,
        service=_served(request, choice, limits),
        traceparent=request.traceparent,
        doubt=doubt,
    )


def _opening(request: Request, choice: ChoiceRecord, limits: AdmissionLimits) -> Opening:
    return Opening(
        stream=choice.stream,
        attempt=choice.attempt,
        prompt_tail=tuple(request.prompt[-limits.prompt_tail_tokens :]),
        stop=choice.sampling.stop,
        end_ids=request.end_ids,
        min_tokens=choice.sampling.min_tokens,
        include_stop=choice.sampling.include_stop,
        skip_special_tokens=choice.sampling.skip_special_tokens,
        output_ids=tuple(choice.ids),
        characters=choice.text.length,
        traceparent=request.traceparent,
        logprobs=choice.sampling.logprobs is not None,
    )
