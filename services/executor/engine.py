"""The loaded model on its device: takes prepared batches, gives sampled ids. Runs on a lane's thread alone."""

import time
from pathlib import Path
from typing import Final

import msgspec
import torch

from noria.proto.execution import Geometry, Group
from noria.services.executor.batch import Batch
from noria.services.executor.cache import Cache
from noria.services.executor.checkpoint import Checkpoint
from noria.services.executor.config import ExecutorConfig
from noria.services.executor.decoder import Decoder
from noria.services.executor.families import Architecture, architecture
from noria.services.executor.reference import ReferenceOperations
from noria.services.executor.sampling import sample
from noria.services.executor.shape import RESERVED_BLOCKS, Shape
from noria.services.executor.sizing import cores, free_memory, num_blocks
from noria.services.executor.step import Rotations, to_step
from noria.shared.models import facts, resolve, served_names

_PROCESSOR: Final = Path("/proc/cpuinfo")


class Loaded(msgspec.Struct, frozen=True):
    """What loading found out. steady: every matrix product gives a row the same bits in any batch."""

    shape: Shape
    geometry: Geometry
    threads: int
    weight_bytes: int
    cache_bytes: int
    free_bytes: int
    load_s: float
    steady: bool


class Engine:
    """Model, cache and the slots' last tokens."""

    def __init__(self, decoder: Decoder, shape: Shape) -> None:
        facts_of = decoder.architecture
        self.shape = shape
        self.decoder = decoder
        self.cache = Cache(facts_of, shape, decoder.dtype)
        self._operations = ReferenceOperations(facts_of, self.cache)
        self._rotations = Rotations(facts_of.rope, facts_of.head_dim, shape.max_model_tokens)
        self._last_token = torch.zeros(shape.max_slots, dtype=torch.int64)

    def run(self, batch: Batch) -> tuple[int, ...]:
        """Compute one batch; returns the sampled ids in the order of its products."""
        logits = self.logits(batch)
        if logits is None or batch.sampler is None:
            return ()
        with torch.inference_mode():
            ids = sample(logits, batch.sampler)
            self._last_token[torch.from_numpy(batch.sampler.slots)] = ids
        return tuple(ids.tolist())

    def logits(self, batch: Batch) -> torch.Tensor | None:
        """Compute a batch up to its float32 logits [sampled rows, vocabulary]; None when it samples nothing."""
        with torch.inference_mode():
            self.cache.copy(batch.copies)
            if not len(batch.token_ids):
                return None
            step = to_step(
                batch, self._rotations, self.shape.page_size, self.decoder.architecture.query_group, self.decoder.dtype
            )
            if len(batch.carry_rows):
                slots = torch.from_numpy(batch.carry_slots)
                step.token_ids[torch.from_numpy(batch.carry_rows)] = self._last_token[slots]
            return self.decoder.logits(self._operations, step)


def load(config: ExecutorConfig) -> tuple[Engine, Loaded]:
    """Load the configured model and make its cache. Raises UserError saying what is wrong with the model or memory."""
    began = time.monotonic()
    threads = config.threads or cores()
    torch.set_num_threads(threads)
    free = free_memory()
    folder = resolve(config.model)
    model = facts(folder, config.model)
    family = architecture(folder, model.max_model_tokens)
    dtype = pick_dtype(config.model.dtype)
    decoder = Decoder(family, Checkpoint(folder), dtype, config.max_batch_tokens, config.max_slots)
    item_bytes = torch.empty(0, dtype=dtype).element_size()
    shape = Shape(
        max_slots=config.max_slots,
        max_batch_tokens=config.max_batch_tokens,
        max_model_tokens=model.max_model_tokens,
        page_size=config.page_size,
        num_blocks=num_blocks(config, family, model.max_model_tokens, item_bytes, free, decoder.nbytes),
        vocabulary=family.vocabulary,
    )
    engine = Engine(decoder, shape)
    geometry = _geometry(served_names(config.model)[0], family, shape, dtype)
    elapsed = time.monotonic() - began
    return engine, Loaded(shape, geometry, threads, decoder.nbytes, engine.cache.bytes, free, elapsed, decoder.steady)


def pick_dtype(name: str, processor: Path = _PROCESSOR) -> torch.dtype:
    """The precision to compute in; auto is bfloat16 only where the processor multiplies it natively."""
    if name == "auto":
        flags = processor.read_text() if processor.exists() else ""
        name = "bfloat16" if "avx512_bf16" in flags or "amx_bf16" in flags else "float32"
    return torch.bfloat16 if name == "bfloat16" else torch.float32


def _geometry(name: str, family: Architecture, shape: Shape, dtype: torch.dtype) -> Geometry:
    return Geometry(
        model=name,
        groups=(Group(0, family.layers),),
        num_blocks=shape.num_blocks,
        reserved_blocks=RESERVED_BLOCKS,
        page_size=shape.page_size,
        max_slots=shape.max_slots,
        max_batch_tokens=shape.max_batch_tokens,
        max_model_tokens=shape.max_model_tokens,
        vocabulary=shape.vocabulary,
        dtype=str(dtype).removeprefix("torch."),
        device="cpu",
    )
