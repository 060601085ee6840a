"""Upper bounds, in bytes, of what a step takes beside weights and cache on a processor."""

from noria.services.executor.cpu.step_tensors import padded_rows
from noria.services.executor.kv_cache.memory_plan import StepMemory
from noria.services.executor.kv_cache.paged_cache import GATHER_BYTES
from noria.services.executor.model.architecture import Architecture
from noria.services.executor.model.reference_linear import computed_rows
from noria.services.executor.plan.limits import ExecutorLimits

_LOGIT_COPIES = 2
_SAMPLING_ROWS = 128
"""What sampling keeps beside the logits, in rows of a vocabulary: it works on a row for each thread."""

_SPAN, _STRETCH_TOKENS, _BLOCK_ROWS = 256, 1024, 96
"""Keys and query rows that native attention takes at once; see attention.cpp."""

_KERNEL_BYTES = 600_000
"""What oneDNN keeps for each number of rows and shape of weights, measured."""
_SHAPES = 4
"""Of a layer's weights: into attention and out of it, into the MLP and out of it."""


def step_memory(
    architecture: Architecture,
    shape: ExecutorLimits,
    item_bytes: int,
    *,
    converts: bool,
    products: int = 0,
    native_threads: int = 0,
    hosted: bool = False,
) -> StepMemory:
    """The memory of the largest step. converts: the cache's dtype is not the computing dtype, of item_bytes.

    products: what a matrix product takes beside its input and output. native_threads: of native kernels; 0 is plain
    PyTorch. hosted: transformers computes the model, tensor by tensor.
    """
    if native_threads:
        activations = _native_activations(architecture, shape, item_bytes, native_threads)
    else:
        activations = _activations(architecture, shape, item_bytes) + GATHER_BYTES * (2 if converts else 1)
    if hosted:
        activations += shape.max_batch_tokens * _hosted_token(architecture, item_bytes)
    return StepMemory(
        activations=products + activations,
        logits=(_LOGIT_COPIES * shape.max_slots + _SAMPLING_ROWS) * architecture.vocabulary * 4,
        buffers=2 * _buffers(shape),
        bookkeeping=_bookkeeping(architecture, shape),
        kernels=0 if native_threads else _kernels(shape),
    )


def _activations(architecture: Architecture, shape: ExecutorLimits, item: int) -> int:
    queries, keys = architecture.heads * architecture.head_dim, architecture.key_width
    chunk = shape.pages_per_span * shape.page_size
    levels = -(-shape.max_model_tokens // chunk)
    # Residual stream, the product before and after; the MLP's halves; rotation in float32, twice.
    token = item * (4 * architecture.hidden + 2 * queries + 2 * keys + 3 * architecture.intermediate)
    token += 8 * (queries + keys)
    token += _chosen(architecture, item, item)
    # Attention keeps each chunk's output and weight until they are joined; masks of the chunks seen in part.
    token += levels * (queries * item + architecture.heads * 4) + 8 * queries
    token += 3 * architecture.query_group * chunk * item
    single = levels * (padded_rows(architecture.query_group) * keys * item + chunk * item)
    return shape.max_batch_tokens * token + shape.max_slots * single


def _kernels(shape: ExecutorLimits) -> int:
    return _KERNEL_BYTES * (_SHAPES * _sizes(shape.max_batch_tokens) + _sizes(shape.max_slots))


def _sizes(rows_max: int) -> int:
    return len({computed_rows(rows, 1) for rows in range(1, rows_max + 1)})


def _native_activations(architecture: Architecture, shape: ExecutorLimits, item: int, threads: int) -> int:
    hidden, queries, keys = architecture.hidden, architecture.heads * architecture.head_dim, architecture.key_width
    inner, experts = architecture.intermediate, architecture.experts
    # Float32: the residual stream and what products give. In the model's dtype: what products and attention take.
    token = 4 * (2 * hidden + queries + 2 * keys + 2 * inner) + item * (hidden + 2 * queries + inner)
    if experts is not None:
        inner = max(experts.intermediate, experts.shared)
        token += 4 * (3 * hidden + 2 * inner) + item * inner + _chosen(architecture, item, 4)
    # Attention: each thread's packed span and its rows' states; the states of stretches that are joined later.
    width, rows = -(-architecture.head_dim // 32) * 32, max(_BLOCK_ROWS, architecture.heads)
    thread = 4 * width * (2 * _SPAN + 4 * rows)
    stretches = -(-shape.max_model_tokens // _STRETCH_TOKENS)
    return shape.max_batch_tokens * token + threads * (thread + 4 * stretches * _BLOCK_ROWS * 4 * (width + 2))


def _chosen(architecture: Architecture, item: int, result: int) -> int:
    """A token's rows in the order of their experts: what experts take, what they give in two orders, whose they are."""
    chosen = architecture.experts.per_token if architecture.experts else 0
    return chosen * (architecture.hidden * (item + 2 * result) + 48)


def _hosted_token(architecture: Architecture, item: int) -> int:
    """What a token takes beside that in PyTorch's tensors: norms and rotation in float32, and a copy of each part."""
    queries, keys = architecture.heads * architecture.head_dim, architecture.key_width
    return (item + 4) * (2 * architecture.hidden + 2 * queries + 4 * keys) + 2 * item * architecture.intermediate


def _buffers(shape: ExecutorLimits) -> int:
    pages = sum(shape.table_width(group) for group in range(len(shape.groups)))
    return 8 * (shape.max_batch_tokens * (2 + len(shape.groups)) + shape.max_slots * (pages + 16))


def _bookkeeping(architecture: Architecture, shape: ExecutorLimits) -> int:
    pages = sum(shape.table_width(group) for group in range(len(shape.groups)))
    rotations = 2 * 4 * shape.max_model_tokens * architecture.head_dim * len(architecture.ropes)
    return shape.max_slots * 4 * (shape.max_model_tokens + 1 + pages) + rotations
