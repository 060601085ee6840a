"""Pads the sizes of steps, so that few graphs serve many.

Pure. A step of decodes alone is padded to a power of two. Others are padded in query tokens to a multiple of
`q_interval`; what is read of the cache is padded to a multiple of `kv_interval` tokens, and its work to powers of two.
"""

import msgspec

from noria.proto.sampling import LOGPROBS_MAX
from noria.services.executor.cuda.layout.step_sizes import SPLIT_TOKENS, GroupSizes, StepSizes
from noria.services.executor.plan.limits import ExecutorLimits


class Padding(msgspec.Struct, frozen=True):
    """The intervals, in query tokens and in cached tokens of a sequence."""

    q_interval: int
    kv_interval: int

    def padded(self, shape: ExecutorLimits, sizes: StepSizes) -> StepSizes:
        """The sizes of the graph for a step of these, whatever it samples beyond the plain."""
        if decodes(sizes):
            tokens = slices = singles = samples = _power(sizes.slices, shape.max_slots)
        else:
            tokens = self.whole(sizes.tokens)
            slices, singles, samples = (
                _power(count, shape.max_slots) if count else 0 for count in (sizes.slices, sizes.singles, sizes.samples)
            )
        groups = tuple(
            GroupSizes(self._entries(shape, group, each.entries), _power(each.splits))
            for group, each in enumerate(sizes.groups)
        )
        return StepSizes(tokens, slices, singles, _power(sizes.tiles), samples, groups)

    def whole(self, tokens: int) -> int:
        """Query tokens up to a whole interval."""
        return -(-tokens // self.q_interval) * self.q_interval

    def _entries(self, shape: ExecutorLimits, group: int, entries: int) -> int:
        if shape.groups[group].ring_pages:
            return entries  # always the whole ring
        interval = max(1, self.kv_interval // shape.page_size)
        return max(entries, min(-(-entries // interval) * interval, shape.table_width(group)))

    def common(self, shape: ExecutorLimits) -> list[StepSizes]:
        """The sizes that are worth recording before anybody asks: decodes of 1 … max_slots short sequences, largest first."""
        counts, count = [], 1
        while count < shape.max_slots:
            counts.append(count)
            count *= 2
        return [self.padded(shape, _decoding(shape, each)) for each in (shape.max_slots, *reversed(counts))]


def largest_sizes(shape: ExecutorLimits, padding: Padding, tile_tokens: int) -> StepSizes:
    """Sizes of the largest step, but for tokens that penalties count and biases."""
    tokens = padding.whole(shape.max_batch_tokens)
    slices = min(shape.max_slots, tokens)
    groups = tuple(
        GroupSizes(shape.table_width(group), _power(slices * (1 + -(-shape.max_model_tokens // SPLIT_TOKENS))))
        for group in range(len(shape.groups))
    )
    tiles = _power(slices + -(-tokens // tile_tokens))
    return StepSizes(tokens, slices, slices, tiles, slices, groups, logprobs=LOGPROBS_MAX)


def decodes(sizes: StepSizes) -> bool:
    """Whether every slice of a step of these sizes is one token."""
    return sizes.tokens == sizes.slices == sizes.singles and sizes.samples > 0


def plain(sizes: StepSizes) -> bool:
    """Whether a step of these sizes samples by logits and parameters alone."""
    return not (sizes.counted or sizes.history or sizes.pending or sizes.biases) and sizes.logprobs < 0


def beyond(padded: StepSizes, needed: StepSizes) -> StepSizes:
    """Padded sizes with the penalties, biases and log-probabilities that a step needs."""
    return msgspec.structs.replace(
        padded,
        counted=needed.counted,
        history=needed.history,
        pending=needed.pending,
        biases=needed.biases,
        logprobs=needed.logprobs,
    )


def _decoding(shape: ExecutorLimits, count: int) -> StepSizes:
    groups = tuple(GroupSizes(kind.ring_pages or 1, count) for kind in shape.groups)
    return StepSizes(count, count, count, 0, count, groups)


def _power(count: int, most: int | None = None) -> int:
    power = 1 << (count - 1).bit_length() if count else 0
    return power if most is None else max(count, min(power, most))
