"""The hot loop of every policy: one token for each sequence that continues."""

from collections.abc import Iterable

from noria.proto.execution import Slice
from noria.services.scheduler.core.state.in_flight_steps import InFlightSlice
from noria.services.scheduler.core.state.request import Request
from noria.services.scheduler.core.state.step_decisions import WaitReason
from noria.services.scheduler.core.step.step_builder import StepBuilder


def plan_decodes(draft: StepBuilder, requests: Iterable[Request], lookahead: int, price: float | None = None) -> None:
    """Plan a token for each of these while budgets and blocks allow; everything in the loop is local.

    lookahead: output tokens that a stream with stop strings may be ahead of the detokenizer. price: of an output token,
    charged once for each position; None charges nothing.
    """
    slices, entries, number = draft.slices, draft.entries, draft.number
    tokens_left, cache_left = draft.tokens_left, draft.cache_left
    for request in requests:
        if not tokens_left:
            draft.pass_over(request, WaitReason.TOKENS)
            break
        output = request.planned
        if request.has_stop and output - request.seen >= lookahead:
            draft.pass_over(request, WaitReason.DETOKENIZER)
            continue
        length = request.length + 1
        if length > cache_left and slices:
            draft.pass_over(request, WaitReason.READS)
            continue
        if length > request.room and not draft.make_room(request, length):
            draft.pass_over(request, WaitReason.BLOCKS)
            continue
        slices.append(Slice(request.slot, length - 1, 1, True, True))
        held = request.held
        assert held is not None
        entries.append(InFlightSlice(request, output, 1, length, held))
        request.length = length
        request.planned = planned = output + 1
        request.in_flight += 1
        request.last_step = number
        if price is not None and output >= request.paid_output:
            request.paid_output = planned
            account = request.account
            assert account is not None
            account.charge(price)
        if planned == request.limit:
            draft.drained.append(request)
        tokens_left -= 1
        cache_left -= length
    draft.decodes += draft.tokens_left - tokens_left
    draft.tokens_left, draft.cache_left = tokens_left, cache_left
