"""To which sizes a step is padded, so that few graphs serve many steps.

Pure. A step of decodes alone is padded to a power of two. Others are padded in query tokens to a multiple of
`q_interval`; what is read of the cache is padded to a multiple of `kv_interval` tokens, and its work to powers of two.
"""

import msgspec

from noria.proto.sampling import LOGPROBS_MAX
from noria.services.executor.cuda.layout.step_sizes import SPLIT_TOKENS, GroupSizes, Sizes
from noria.services.executor.plan.limits import Shape


class Padding(msgspec.Struct, frozen=True):
    """The intervals, in query tokens and in cached tokens of a sequence."""

    q_interval: int
    kv_interval: int

    def padded(self, shape: Shape, sizes: Sizes) -> Sizes:
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
        return Sizes(tokens, slices, singles, _power(sizes.tiles), samples, groups)

    def whole(self, tokens: int) -> int:
        """Query tokens up to a whole interval."""
        return -(-tokens // self.q_interval) * self.q_interval

    def _entries(self, shape: Shape, group: int, entries: int) -> int:
        if shape.groups[group].ring_pages:
            return entries  # always the whole ring
        interval = max(1, self.kv_interval // shape.page_size)
        return max(entries, min(-(-entries // interval) * interval, shape.table_width(group)))

    def common(self, shape: Shape) -> list[Sizes]:
        """The sizes that are worth recording before anybody asks: decodes of 1 … max_slots short sequences, largest first."""
        counts, count = [], 1
        while count < shape.max_slots:
            counts.append(count)
            count *= 2
        return [self.padded(shape, _decoding(shape, each)) for each in (shape.max_slots, *reversed(counts))]


def largest_sizes(shape: Shape, padding: Padding, tile_tokens: int) -> Sizes:
    """At least what any step has of everything but what penalties count and logits are biased by."""
    tokens = padding.whole(shape.max_batch_tokens)
    slices = min(shape.max_slots, tokens)
    groups = tuple(
        GroupSizes(shape.table_width(group), _power(slices * (1 + -(-shape.max_model_tokens // SPLIT_TOKENS))))
        for group in range(len(shape.groups))
    )
    tiles = _power(slices + -(-tokens // tile_tokens))
    return Sizes(tokens, slices, slices, tiles, slices, groups, logprobs=LOGPROBS_MAX)


def decodes(sizes: Sizes) -> bool:
    """Whether every slice is one token."""
    return sizes.tokens == sizes.slices == sizes.singles and sizes.samples > 0


def plain(sizes: Sizes) -> bool:
    """Whether sampling needs nothing but logits and each row's parameters."""
    return not (sizes.counted or sizes.history or sizes.pending or sizes.biases) and sizes.logprobs < 0


def beyond(padded: Sizes, needed: Sizes) -> Sizes:
    """Padded sizes with what a step's sampling needs beyond the plain."""
    return msgspec.structs.replace(
        padded,
        counted=needed.counted,
        history=needed.history,
        pending=needed.pending,
        biases=needed.biases,
        logprobs=needed.logprobs,
    )


def _decoding(shape: Shape, count: int) -> Sizes:
    groups = tuple(GroupSizes(kind.ring_pages or 1, count) for kind in shape.groups)
    return Sizes(count, count, count, 0, count, groups)


def _power(count: int, most: int | None = None) -> int:
    power = 1 << (count - 1).bit_length() if count else 0
    return power if most is None else max(count, min(power, most))
