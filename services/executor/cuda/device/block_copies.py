"""Copies blocks before a step computes: to the host, on the device, from the host.

The slow way over the bus has a stream of its own. What goes out is gathered into a staging buffer by the compute stream,
which then goes on, while the swap stream copies it to the host; what comes in is copied to another staging buffer while
the step before still computes, and is spread over the pool in its turn.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch

from noria.proto.execution import Copy
from noria.services.executor.cuda.device.cache_pool import DeviceCachePool, pieces, rounds
from noria.services.executor.cuda.device.streams import BufferUses, Device, DeviceBuffer, DeviceEvent, DeviceStream
from noria.services.executor.plan.batch import Batch
from noria.services.executor.plan.limits import Integers

STAGING_BYTES: Final = 64 << 20


class BlockCopies:
    """Copies blocks between device and host pool. staging_bytes: how many are under way at once, each way."""

    def __init__(
        self, device: Device, pool: DeviceCachePool, pool_buffer: DeviceBuffer, staging_bytes: int = STAGING_BYTES
    ) -> None:
        self._pool = pool
        self._buffer = pool_buffer
        host = pool.shape.num_host_chunks * pool.chunk_bytes
        self._most = max(min(staging_bytes, host), *(pool.block_bytes(each) for each in range(len(pool.shape.groups))))
        self._host = device.host_buffer("host pool", host)
        staged = self._most if host else 0
        self._out, self._in = device.buffer("staging out", staged), device.buffer("staging in", staged)
        self._swap = device.stream("swap")
        self._out_free: DeviceEvent | None = None
        self._in_free: DeviceEvent | None = None

    @property
    def host(self) -> torch.Tensor:
        """The host pool, as bytes."""
        return self._host.data

    @property
    def staging_bytes(self) -> int:
        """Bytes on the device of what is on its way."""
        return len(self._out.data) + len(self._in.data)

    def rows(self, batch: Batch) -> Integers:
        """The pool's rows that `launch` needs on the device: what goes out, sources, targets, what comes in."""
        pool = self._pool
        return np.concatenate(
            (
                pool.rows([(each.group, each.source) for each in batch.swap_out]),
                pool.rows([(each.group, each.source) for each in batch.copies]),
                pool.rows([(each.group, each.target) for each in batch.copies]),
                pool.rows([(each.group, each.target) for each in batch.swap_in]),
            )
        )

    def launch(self, batch: Batch, compute: DeviceStream, index: DeviceBuffer) -> None:
        """Queue a batch's copies. index: holds `rows` once the compute stream comes here."""
        given = index.data.view(torch.int64)
        used = 0

        def take(copies: Sequence[Copy]) -> torch.Tensor:
            nonlocal used
            first = used
            used += sum(2 * self._pool.shape.groups[each.group].layers for each in copies)
            return given[first:used]

        for part in rounds(self._pool, batch.swap_out, self._most):
            self._take_out(part, take(part), compute, index)
        if batch.copies:
            sources, targets = take(batch.copies), take(batch.copies)
            compute.run(lambda: self._copy(sources, targets), BufferUses((index, self._buffer), (self._buffer,)))
        for part in rounds(self._pool, batch.swap_in, self._most):
            self._bring_in(part, take(part), compute, index)

    def _take_out(self, copies: Sequence[Copy], rows: torch.Tensor, compute: DeviceStream, index: DeviceBuffer) -> None:
        if self._out_free is not None:
            compute.wait(self._out_free)
        staged = self._staged(self._out, len(rows))
        pages = self._pool.pages
        compute.run(lambda: _gather(pages, rows, staged), BufferUses((index, self._buffer), (self._out,)))
        self._swap.wait(compute.record())
        self._swap.copy_parts(self._host, self._out, pieces(self._pool, [(each.group, each.target) for each in copies]))
        self._out_free = self._swap.record()

    def _bring_in(self, copies: Sequence[Copy], rows: torch.Tensor, compute: DeviceStream, index: DeviceBuffer) -> None:
        if self._in_free is not None:
            self._swap.wait(self._in_free)
        found = pieces(self._pool, [(each.group, each.source) for each in copies])
        self._swap.copy_parts(self._in, self._host, [(place, host, size) for host, place, size in found])
        compute.wait(self._swap.record())
        staged = self._staged(self._in, len(rows))
        pages = self._pool.pages
        compute.run(lambda: _spread(pages, rows, staged), BufferUses((index, self._in), (self._buffer,)))
        self._in_free = compute.record()

    def _staged(self, buffer: DeviceBuffer, rows: int) -> torch.Tensor:
        return buffer.data[: rows * self._pool.page_bytes].view(rows, self._pool.page_bytes)

    def _copy(self, sources: torch.Tensor, targets: torch.Tensor) -> None:
        pages = self._pool.pages
        pages.index_copy_(0, targets, pages.index_select(0, sources))


def _gather(pages: torch.Tensor, rows: torch.Tensor, staged: torch.Tensor) -> None:
    torch.index_select(pages, 0, rows, out=staged)


def _spread(pages: torch.Tensor, rows: torch.Tensor, staged: torch.Tensor) -> None:
    pages.index_copy_(0, rows, staged)
