"""The processor's engine: computes batches and samples, on the model runner's thread alone."""

import numpy as np
import torch

from noria.services.executor.cpu.native.linear import NativeLinearFactory
from noria.services.executor.cpu.native.operations import NativeOperations
from noria.services.executor.cpu.reference_operations import ReferenceOperations
from noria.services.executor.kv_cache.cache_prefault import CachePrefault
from noria.services.executor.kv_cache.layer_groups import layer_groups
from noria.services.executor.kv_cache.paged_cache import KVCache
from noria.services.executor.model.causal_lm import CausalLM
from noria.services.executor.model.operations import CpuOperations
from noria.services.executor.plan.batch import Batch
from noria.services.executor.plan.limits import ExecutorLimits, Integers
from noria.services.executor.plan.sampling_metadata import RecentTokens, SamplerOutput


class CpuEngine:
    """A model, its cache and the slots' last tokens. cache_dtype: the model's own where None.

    A decoder with native products is computed by their kernels altogether.
    """

    def __init__(self, decoder: CausalLM, shape: ExecutorLimits, cache_dtype: torch.dtype | None = None) -> None:
        facts_of = decoder.architecture
        places = layer_groups(facts_of.windows, shape.max_model_tokens)
        self.shape = shape
        self.decoder = decoder
        linear_factory = decoder.linear_factory
        native = isinstance(linear_factory, NativeLinearFactory)
        self.cache = KVCache(facts_of, shape, places, decoder.dtype, cache_dtype or decoder.dtype, native=native)
        self._operations: CpuOperations = ReferenceOperations(facts_of, shape, self.cache, places, decoder.dtype)
        if isinstance(linear_factory, NativeLinearFactory):
            self._operations = NativeOperations(
                facts_of, shape, self.cache, places, decoder.dtype, linear_factory.kernels, linear_factory.threads
            )
        self._last_token = torch.zeros(shape.max_slots, dtype=torch.int64)
        self._recent = RecentTokens(shape.max_slots)
        self._prefault: CachePrefault | None = None

    def make_ready(self) -> None:
        """Begin to touch the cache's memory before it is used."""
        self._prefault = CachePrefault(self.cache.regions(), self.cache.page_bytes, self.shape.num_chunks)

    @property
    def experts_read(self) -> int:
        """How many experts' weights steps have read so far."""
        return int(self._operations.experts.total)

    def run(self, batch: Batch) -> SamplerOutput | None:
        """Compute one batch; returns what it sampled in the order of its sampled rows, None when that is nothing."""
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
        """Float32 logits [rows, vocabulary] of the given query rows; None for None."""
        with torch.inference_mode():
            self.cache.move(batch.swap_out, batch.copies, batch.swap_in)
            if not len(batch.token_ids):
                return None
            if len(batch.carry_rows):
                slots = torch.from_numpy(batch.carry_slots)
                torch.from_numpy(batch.token_ids)[torch.from_numpy(batch.carry_rows)] = self._last_token[slots]
            if self._prefault is not None:
                written = [each.write_slots // self.shape.page_size % self.shape.num_chunks for each in batch.pages]
                self._prefault.reach(max(int(chunks.max()) for chunks in written))
            self._operations.begin(batch, rows)
            return self.decoder.logits(self._operations, batch, rows)
