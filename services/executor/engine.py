"""The loaded model on its device: takes prepared batches, gives sampled ids. Runs on a lane's thread alone."""

import time
from pathlib import Path
from typing import Final

import numpy as np
import torch

from noria.proto.execution import Geometry
from noria.services.executor.ahead import Ahead
from noria.services.executor.batch import Batch
from noria.services.executor.cache import Cache
from noria.services.executor.calibration import Advice, calibrated, calibration_key, many
from noria.services.executor.computing import choose
from noria.services.executor.config import ExecutorConfig
from noria.services.executor.footprint import footprint
from noria.services.executor.groups import cache_groups, layer_groups
from noria.services.executor.loaded import Loaded
from noria.services.executor.loading import make_model
from noria.services.executor.machine import cores, free_memory, return_freed
from noria.services.executor.model import Model
from noria.services.executor.native_operations import NativeOperations
from noria.services.executor.native_products import NativeProducts
from noria.services.executor.operations import Operations
from noria.services.executor.packed import packed_path
from noria.services.executor.reference import ReferenceOperations
from noria.services.executor.sampler import Drawn, RecentTokens
from noria.services.executor.shape import RESERVED_CHUNKS, Integers, Shape
from noria.services.executor.sizing import sized
from noria.services.executor.stores import page_bytes
from noria.shared.errors import UserError
from noria.shared.model.model_folder import read_model_facts, resolve_model_folder, served_names

CACHE_DTYPES: Final = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": torch.int8,
    "fp8": torch.float8_e4m3fn,
}
_PROCESSOR: Final = Path("/proc/cpuinfo")


class Engine:
    """Model, cache and the slots' last tokens. cache_dtype: the model's own where None.

    A decoder with native products is computed by their kernels altogether.
    """

    def __init__(self, decoder: Model, shape: Shape, cache_dtype: torch.dtype | None = None) -> None:
        facts_of = decoder.architecture
        places = layer_groups(facts_of.windows, shape.max_model_tokens)
        self.shape = shape
        self.decoder = decoder
        products = decoder.products
        native = isinstance(products, NativeProducts)
        self.cache = Cache(facts_of, shape, places, decoder.dtype, cache_dtype or decoder.dtype, native=native)
        self._operations: Operations = ReferenceOperations(facts_of, shape, self.cache, places, decoder.dtype)
        if isinstance(products, NativeProducts):
            self._operations = NativeOperations(
                facts_of, shape, self.cache, places, decoder.dtype, products.kernels, products.threads
            )
        self._last_token = torch.zeros(shape.max_slots, dtype=torch.int64)
        self._recent = RecentTokens(shape.max_slots)
        self._ahead: Ahead | None = None

    def make_ready(self) -> None:
        """From now on, make the cache's memory ready before it is used."""
        self._ahead = Ahead(self.cache.regions(), self.cache.page_bytes, self.shape.num_blocks)

    @property
    def experts_read(self) -> int:
        """How many experts' weights steps have read so far."""
        return int(self._operations.experts.total)

    def run(self, batch: Batch) -> Drawn | None:
        """Compute one batch; returns what it sampled in the order of its products, None when that is nothing."""
        logits, sampler = self.logits(batch), batch.sampler
        if logits is None or sampler is None:
            return None
        self._recent.complete(sampler)
        with torch.inference_mode():
            drawn = self._operations.sample(logits, sampler)
            self._last_token[torch.from_numpy(sampler.slots)] = torch.from_numpy(drawn.ids)
        self._recent.note(sampler, drawn.ids)
        return drawn

    def logits(self, batch: Batch, *, everywhere: bool = False) -> torch.Tensor | None:
        """Compute a batch up to its float32 logits [sampled rows, vocabulary]; None when it samples nothing.

        They live until the next batch; those everywhere, of all query tokens, for measuring, live on.
        """
        rows = np.arange(len(batch.token_ids)) if everywhere else batch.sampler.rows if batch.sampler else None
        logits = self.logits_of(batch, rows)
        return logits.clone() if everywhere and logits is not None else logits

    def logits_of(self, batch: Batch, rows: Integers | None) -> torch.Tensor | None:
        """The logits of some query tokens."""
        with torch.inference_mode():
            self.cache.move(batch.swap_out, batch.copies, batch.swap_in)
            if not len(batch.token_ids):
                return None
            if len(batch.carry_rows):
                slots = torch.from_numpy(batch.carry_slots)
                torch.from_numpy(batch.token_ids)[torch.from_numpy(batch.carry_rows)] = self._last_token[slots]
            if self._ahead is not None:
                written = [each.write_slots // self.shape.page_size % self.shape.num_blocks for each in batch.pages]
                self._ahead.reach(max(int(chunks.max()) for chunks in written))
            self._operations.begin(batch, rows)
            return self.decoder.logits(self._operations, batch, rows)


def load(config: ExecutorConfig) -> tuple[Engine, Loaded]:
    """Load the configured model and make its cache. Raises UserError saying what is wrong with the model or memory."""
    began = time.monotonic()
    threads = config.threads or cores()
    torch.set_num_threads(threads)
    free = free_memory()
    folder = resolve_model_folder(config.model)
    context = read_model_facts(folder, config.model).max_model_tokens
    dtype = pick_dtype(config.model.dtype)
    if config.kv_cache_dtype == "fp8":
        raise UserError("cache.kv_cache_dtype fp8 is for GPUs; with --device cpu choose int8, which is as small")
    cache_dtype = dtype if config.kv_cache_dtype == "auto" else CACHE_DTYPES[config.kv_cache_dtype]
    computing = choose(config.kernels, config.quantization)
    made = make_model(config, folder, dtype, context, computing, threads)
    model, family = made.model, made.model.architecture
    return_freed()
    shape = Shape(
        max_slots=config.max_slots,
        max_batch_tokens=config.max_batch_tokens,
        max_model_tokens=context,
        page_size=config.page_size,
        num_blocks=RESERVED_CHUNKS,
        vocabulary=family.vocabulary,
        groups=cache_groups(family.windows, context, config.max_batch_tokens, config.page_size),
    )
    chunk_bytes = 2 * shape.pool_chunk_pages * page_bytes(family, shape.page_size, cache_dtype)
    rest = footprint(
        family,
        shape,
        dtype.itemsize,
        converts=cache_dtype != dtype,
        products=model.scratch_bytes,
        native_threads=threads if computing.kernels else 0,
        hosted=made.hosted,
    )
    shape, memory = sized(config, shape, chunk_bytes, free, model.nbytes, rest)
    engine = Engine(model, shape, cache_dtype)
    engine.make_ready()
    ways = made.name, str(dtype), str(cache_dtype), str(threads)
    advice = (
        _advice(config, engine, packed_path(folder, dtype, config.quantization), ways) if config.calibrate else None
    )
    geometry = geometry_of(served_names(config.model)[0], shape, dtype, chunk_bytes, advice)
    load_s = time.monotonic() - began
    return engine, Loaded(shape, geometry, threads, memory, load_s, model.steady, made.name, made.unkept, made.unused)


def pick_dtype(name: str, processor: Path = _PROCESSOR) -> torch.dtype:
    """The precision to compute in; auto is bfloat16 only where the processor multiplies it natively."""
    if name == "auto":
        flags = processor.read_text() if processor.exists() else ""
        name = "bfloat16" if "avx512_bf16" in flags or "amx_bf16" in flags else "float32"
    return torch.bfloat16 if name == "bfloat16" else torch.float32


def _advice(config: ExecutorConfig, engine: Engine, weights: Path, ways: tuple[str, ...]) -> Advice:
    """By the pace kept beside a model's packed weights, or measured now."""
    key = calibration_key((weights.parent.parent / "config.json").read_bytes(), engine.shape, *ways)
    return calibrated(engine, weights.with_suffix(".pace") if config.keep_packed else None, key)


def geometry_of(
    name: str,
    shape: Shape,
    dtype: torch.dtype,
    chunk_bytes: int,
    advice: Advice | None = None,
    device: str = "cpu",
) -> Geometry:
    """What the scheduler is told."""
    return Geometry(
        model=name,
        groups=shape.groups,
        num_blocks=shape.num_blocks,
        reserved_blocks=RESERVED_CHUNKS,
        page_size=shape.page_size,
        max_slots=shape.max_slots,
        max_batch_tokens=shape.max_batch_tokens,
        max_model_tokens=shape.max_model_tokens,
        vocabulary=shape.vocabulary,
        dtype=str(dtype).removeprefix("torch."),
        device=device,
        host_slots=shape.host_slots,
        bytes_per_chunk=chunk_bytes,
        prefill_tokens=advice.alone if advice else 0,
        prefill_tokens_beside=advice.beside if advice else 0,
        prefill_tokens_few=advice.few if advice else 0,
        prefill_decodes=many(shape) if advice else 0,
    )
