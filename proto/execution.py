"""Messages between scheduler and executor: numbered step plans, their results, and the geometry of the executor.

Plans are differences. What a slot computes with (prompt and output ids, sampling, block table) is sent once, when the
slot is filled; after that only new blocks. The executor applies only number `last + 1` of its epoch; number 1 opens an
epoch and empties every slot first. What a scheduler takes over from its predecessor it names there by filling slots with
the blocks that already hold their content: those that no plan names are blank.
"""

from array import array
from collections.abc import Iterable
from enum import StrEnum
from hashlib import blake2b

import msgspec

from noria.proto.base import Stream, TokenLogprob
from noria.proto.sampling import Sampling


class Fill(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Put a stream into a slot.

    prompt_ids and output_ids are kept apart: penalties, `min_tokens` and usage need the boundary. `blocks` has one
    block table per allocator, in the order of `Geometry.groups`. `end_ids` are masked before `sampling.min_tokens`.
    cached: positions whose keys and values are in the blocks already, once the plan's copies are done.
    `traceparent`: the stream's trace context, to link the steps it is in with.
    """

    slot: int
    stream: Stream
    attempt: int
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    sampling: Sampling
    end_ids: tuple[int, ...]
    blocks: tuple[tuple[int, ...], ...]
    cached: int = 0
    traceparent: str = ""


class Grow(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Append blocks to one of a slot's tables."""

    slot: int
    group: int
    blocks: tuple[int, ...]


class Slice(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Compute `length` tokens of a slot at positions start … start + length - 1.

    carry: the (only) token is the one that the slot's previous sampling slice produces; it is read on the device.
    sample: the last token's logits are sampled, the result becomes the slot's last token and an output id.
    """

    slot: int
    start: int
    length: int
    carry: bool
    sample: bool


class Copy(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Copy one block of a group onto another (block copies), or between device and host (swaps).

    swap_out: device block to host block. swap_in: host block to device block. copies: device to device. Host blocks
    are numbered for each group as device blocks are, over the `Geometry.host_slots` chunks of the host pool.
    """

    group: int
    source: int
    target: int


class Replace(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Replace an entry of a slot's block table, at `index`, by another block that holds the same tokens.

    Two requests computed the same page: both use one copy from now on.
    """

    slot: int
    group: int
    index: int
    block: int


class Stash(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A slot that this plan releases and swaps out, so that the executor can name it to another scheduler in `Inventory`.

    blocks: of each group of the host, to which the plan's swap_out copies the slot's table; they hold `length` positions.
    """

    slot: int
    length: int
    blocks: tuple[tuple[int, ...], ...]


class StepPlan(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One step. Applied in the order: release, swap_out, copies, swap_in, fill, grow, replace, compute `slices`.

    stash: of the released slots, those that are swapped out. predicted_us: how long the step should take on the lane; 0
    where nobody knows.
    """

    epoch: int
    number: int
    slices: tuple[Slice, ...]
    fill: tuple[Fill, ...] = ()
    grow: tuple[Grow, ...] = ()
    release: tuple[int, ...] = ()
    swap_out: tuple[Copy, ...] = ()
    copies: tuple[Copy, ...] = ()
    swap_in: tuple[Copy, ...] = ()
    replace: tuple[Replace, ...] = ()
    stash: tuple[Stash, ...] = ()
    predicted_us: float = 0.0


class Sampled(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Tokens that a step produced for one stream: output ids from output position `start`.

    likelihoods: of each id, for streams whose sampling asks for them; else empty.
    """

    stream: Stream
    attempt: int
    start: int
    ids: tuple[int, ...]
    likelihoods: tuple[TokenLogprob, ...] = ()


class StepDone(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The result of one step, in plan order.

    compute_us is the time on the lane; prepare_us the time to turn the plan into arrays; idle_us how long the lane
    waited for this step after the one before it.
    """

    epoch: int
    number: int
    sampled: tuple[Sampled, ...]
    compute_us: int = 0
    prepare_us: int = 0
    idle_us: int = 0


class Failure(StrEnum):
    """Why a step was not computed."""

    MEMORY = "memory"
    INVALID = "invalid"
    ERROR = "error"


class StepFailed(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Step `number` was not computed and every later plan of the epoch is discarded; a new epoch must be opened."""

    epoch: int
    number: int
    failure: Failure
    detail: str


class Group(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The layers of one attention type. window: 0 is full attention, else how many tokens a layer looks back.

    blocks_per_chunk: how many of this group's blocks tile one chunk of the pool; block b is part b % blocks_per_chunk
    of chunk b // blocks_per_chunk. ring_pages: the longest table of a sliding group; page p of a sequence is table
    entry p % ring_pages. 0: every page has an entry of its own.
    """

    window: int
    layers: int
    blocks_per_chunk: int = 1
    ring_pages: int = 0


class Geometry(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Sizes and limits of the executor and its cache, sent at `Hello`. The scheduler owns block numbers, the executor bytes.

    num_blocks counts chunks of the pool, of which the first `reserved_blocks` are padding targets that must never be
    allocated. A block is one page of `page_size` tokens per layer of a group; each group cuts chunks of
    `bytes_per_chunk` into blocks of its own size. host_slots counts chunks of the host pool that takes swapped blocks.
    max_slots bounds the requests in a step, max_batch_tokens its query tokens. prefill_tokens: the prompt tokens that a step
    should compute at most when nobody decodes in it, prefill_tokens_beside when `prefill_decodes` do, and as many times more as
    fewer do, up to prefill_tokens_few; 0 is no advice.
    inventory: it holds streams of an earlier scheduler, or of an earlier link to this one: an `Inventory` follows as soon
    as no step is under way any more.
    """

    model: str
    groups: tuple[Group, ...]
    num_blocks: int
    reserved_blocks: int
    page_size: int
    max_slots: int
    max_batch_tokens: int
    max_model_tokens: int
    vocabulary: int
    dtype: str
    device: str
    host_slots: int = 0
    bytes_per_chunk: int = 0
    prefill_tokens: int = 0
    prefill_tokens_beside: int = 0
    inventory: bool = False
    prefill_tokens_few: int = 0
    prefill_decodes: int = 0


class Held(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One stream's cache that the executor still holds.

    slot: where, or -1 for one that was swapped out, whose `blocks` are of the host, or that left its slot a moment ago, of
    which nothing is cached any more (length 0). digest: of its `length` cached token ids (`cache_digest`). output_ids: all
    output tokens that it knows, those included of which the last scheduler never heard. likelihoods: of the last of them,
    for streams whose sampling asks for them.
    """

    slot: int
    stream: Stream
    attempt: int
    digest: bytes
    length: int
    blocks: tuple[tuple[int, ...], ...]
    output_ids: tuple[int, ...] = ()
    likelihoods: tuple[TokenLogprob, ...] = ()


def cache_digest(ids: Iterable[int]) -> bytes:
    """The digest that names the content of a cache: 16 bytes of BLAKE2b over its token ids as 64-bit integers."""
    return blake2b(array("q", ids).tobytes(), digest_size=16).digest()


class Inventory(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Everything the executor still holds, for a scheduler that has restarted. epoch: the executor's last one."""

    epoch: int
    entries: tuple[Held, ...]


SCHEDULER_TO_EXECUTOR = (StepPlan,)
EXECUTOR_TO_SCHEDULER = (Geometry, StepDone, StepFailed, Inventory)
