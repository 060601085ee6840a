"""Attention by FlashInfer, for the models and caches that it knows; planned on the host before each step.

A wrapper belongs to steps of one padded size, because a graph holds its buffers; it stays for good. FlashInfer copies its
plan from memory that the next plan overwrites, so a plan waits until the one before it has been copied: that was queued
ahead of the step before, which runs by then.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import torch
from flashinfer import BatchPrefillWithPagedKVCacheWrapper

from noria.services.executor.cuda.device.step_inputs import StepInputs
from noria.services.executor.cuda.layers.attention import DeviceAttention
from noria.services.executor.cuda.layers.layer_pages import LayerPages
from noria.services.executor.cuda.layout.paged_lists import most_pages, paged_lists
from noria.services.executor.cuda.layout.step_sizes import StepSizes
from noria.services.executor.model.architecture import Architecture
from noria.services.executor.plan.batch import Batch
from noria.services.executor.plan.limits import ExecutorLimits

HEAD_SIZES: Final = (64, 128, 256)
"""What FlashInfer's kernels are made for."""

DTYPES: Final = (torch.float16, torch.bfloat16)
"""Of queries and caches."""

_WORKSPACE_BYTES: Final = 128 << 20
_WRAPPERS_MAX: Final = 48
"""Sizes of steps that have wrappers, each with 8 MiB of its own on the device and on the host; others are not taken."""

Key = tuple[int, int, tuple[int, ...]]


class PlanCopy(Protocol):
    """A point in the stream's work."""

    def synchronize(self) -> None:
        """Wait until it has been reached."""


@dataclass(slots=True, eq=False)
class _PlannedWrapper:
    """FlashInfer's wrapper for one group and one padded size, with its arrays."""

    wrapper: BatchPrefillWithPagedKVCacheWrapper
    copied: PlanCopy | None = None


def knows(architecture: Architecture, dtype: torch.dtype, store: torch.dtype) -> bool:
    """Whether FlashInfer can compute this model's attention over this cache."""
    return architecture.head_dim in HEAD_SIZES and dtype in DTYPES and store == dtype


class FlashInferAttention:
    """`DeviceAttention` by FlashInfer. otherwise: what computes steps of sizes beyond those that have wrappers."""

    name = "FlashInfer"

    def __init__(
        self,
        architecture: Architecture,
        shape: ExecutorLimits,
        pages: Sequence[LayerPages],
        groups: Sequence[int],
        dtype: torch.dtype,
        otherwise: DeviceAttention,
    ) -> None:
        self._architecture, self._page_size = architecture, shape.page_size
        self._groups, self._dtype, self._otherwise = groups, dtype, otherwise
        sizes = (-1, shape.page_size, architecture.kv_heads, architecture.head_dim)
        self._pages = [(each.keys.view(sizes), each.values.view(sizes)) for each in pages]
        self._device = pages[0].keys.device
        self._workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=self._device)
        self._known: dict[Key, list[_PlannedWrapper]] = {}

    def plan(self, batch: Batch, sizes: StepSizes) -> None:
        """Plan each group's attention of a step."""
        facts = self._architecture
        for group, planned in enumerate(self._planned(sizes)):
            if planned.copied is not None:
                planned.copied.synchronize()
            part = batch.pages[group]
            lists = paged_lists(batch.slices, part, sizes, self._page_size)
            planned.wrapper.plan(
                torch.from_numpy(lists.queries),
                torch.from_numpy(lists.starts),
                torch.from_numpy(lists.pages),
                torch.from_numpy(lists.last_tokens),
                facts.heads,
                facts.kv_heads,
                facts.head_dim,
                self._page_size,
                causal=True,
                sm_scale=facts.scale,
                window_left=part.window - 1,
                logits_soft_cap=facts.score_cap,
                q_data_type=self._dtype,
                kv_data_type=self._dtype,
            )
            if self._device.type == "cuda":
                event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it untyped
                event.record()
                planned.copied = event

    def run(self, layer: int, queries: torch.Tensor, out: torch.Tensor, step: StepInputs) -> None:
        """Queue a layer's attention."""
        planned = self._planned(step.sizes)
        if not planned:
            self._otherwise.run(layer, queries, out, step)
            return
        sizes = (len(queries), self._architecture.heads, self._architecture.head_dim)
        planned[self._groups[layer]].wrapper.run(queries.view(sizes), self._pages[layer], out=out.view(sizes))

    def _planned(self, sizes: StepSizes) -> list[_PlannedWrapper]:
        """The wrappers of all groups for steps of these sizes, none when there are too many already."""
        key = sizes.tokens, sizes.slices, tuple(each.entries for each in sizes.groups)
        if key not in self._known:
            makes = len(self._known) < _WRAPPERS_MAX
            self._known[key] = [self._wrapper(sizes, group) for group in range(len(sizes.groups))] if makes else []
        return self._known[key]

    def _wrapper(self, sizes: StepSizes, group: int) -> _PlannedWrapper:
        count = sizes.slices + 1
        queries, starts, pages, last = (
            torch.zeros(length, dtype=torch.int32, device=self._device)
            for length in (count + 1, count + 1, most_pages(sizes, group, self._page_size), count)
        )
        return _PlannedWrapper(
            BatchPrefillWithPagedKVCacheWrapper(
                self._workspace,
                "NHD",
                use_cuda_graph=True,
                qo_indptr_buf=queries,
                paged_kv_indptr_buf=starts,
                paged_kv_indices_buf=pages,
                paged_kv_last_page_len_buf=last,
            )
        )
