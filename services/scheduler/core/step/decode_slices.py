"""The hot loop of every policy: one token for each sequence that continues."""

from collections.abc import Iterable

from noria.proto.execution import Slice
from noria.services.scheduler.core.state.in_flight_steps import InFlightSlice
from noria.services.scheduler.core.state.request import Request
from noria.services.scheduler.core.state.step_decisions import WaitReason
from noria.services.scheduler.core.step.step_builder import StepBuilder


def plan_decodes(builder: StepBuilder, requests: Iterable[Request], lookahead: int) -> None:
    """Plan a token for each of these while budgets and blocks allow; everything in the loop is local.

    lookahead: output tokens that a stream with stop strings may be ahead of the detokenizer.
    """
    slices, entries, number = builder.slices, builder.entries, builder.number
    tokens_left, cache_left, new = builder.budget.tokens_left, builder.budget.cache_left, tuple.__new__
    for request in requests:
        if not tokens_left:
            builder.pass_over(request, WaitReason.TOKENS)
            break
        work, progress, use = request.work, request.progress, request.cache
        output = work.outputs
        if request.asked.has_stop_strings and output - progress.seen >= lookahead:
            builder.pass_over(request, WaitReason.DETOKENIZER)
            continue
        length = work.length + 1
        if length > cache_left and slices:
            builder.pass_over(request, WaitReason.READS)
            continue
        if length > use.room and not builder.make_room(request, length):
            builder.pass_over(request, WaitReason.BLOCKS)
            continue
        slices.append(Slice(request.slot, length - 1, 1, True, True))
        # Without the named tuple's own constructor, which is a function call for each token.
        entries.append(new(InFlightSlice, (request, output, 1, length, use.blocks)))
        work.length = length
        work.outputs = planned = output + 1
        work.slices += 1
        work.last_step = number
        if planned == progress.limit:
            builder.drained.append(request)
        tokens_left -= 1
        cache_left -= length
    builder.record.decodes += builder.budget.tokens_left - tokens_left
    builder.budget.tokens_left, builder.budget.cache_left = tokens_left, cache_left
