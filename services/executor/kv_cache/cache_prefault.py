"""Touches the cache's memory in a thread of its own before a step uses it.

A page of memory costs most when it is first written: the system clears it, and a hypervisor may have to find it. In steps
that write keys and values where nobody wrote before, on a virtual machine that gives free memory back to its host, this
was a fifth of a closed loop's time. It knows neither blocks nor requests: chunks of the pool, of which the lowest are used
first.
"""

import ctypes
import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

AHEAD_BYTES: Final = 192 << 20
"""How much is ready beyond the highest chunk that was used, whatever else is done."""

AHEAD_IDLE_BYTES: Final = 576 << 20
"""How much is made ready while nothing is computed: what a start may add to resident memory."""

_IDLE_S: Final = 0.3

_PIECE_BYTES: Final = 16 << 20
_POPULATE_WRITE: Final = 23
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_madvise = ctypes.CDLL(None).madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class CachePrefault:
    """Keeps the first chunks of each region ready, `ahead_bytes` further than was used, `idle_bytes` after moments without use.

    regions: addresses, each of `chunks` times `chunk_bytes` of zeroed memory that lives as long as the process. On systems
    that cannot make memory ready (Linux before 5.14) nothing happens.
    """

    def __init__(
        self,
        regions: Sequence[int],
        chunk_bytes: int,
        chunks: int,
        ahead_bytes: int = AHEAD_BYTES,
        idle_bytes: int = AHEAD_IDLE_BYTES,
    ) -> None:
        self._regions, self._chunk_bytes, self._chunks = regions, chunk_bytes, chunks
        per_chunk = max(1, chunk_bytes * len(regions))
        self._prefault = max(1, ahead_bytes // per_chunk)
        self._ahead_idle = max(self._prefault, idle_bytes // per_chunk)
        self._piece = max(1, _PIECE_BYTES // per_chunk)
        self._used = self._told = 0
        self._used_s = time.monotonic()
        self._more = threading.Event()
        threading.Thread(target=self._run, name="ahead", daemon=True).start()

    def reach(self, chunk: int) -> None:
        """Note that a chunk is about to be used, so that the ones behind it are made ready."""
        self._used_s = time.monotonic()
        self._used = max(self._used, chunk + 1)
        if self._used >= min(self._chunks, self._told + self._piece):
            self._told = self._used
            self._more.set()

    def _run(self) -> None:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
        ready = 0
        while ready < self._chunks:
            end = min(self._wanted(ready), ready + self._piece)
            if end > ready:
                if not self._make_ready(ready, end):
                    return
                ready = end
            else:
                self._more.wait(_IDLE_S if ready < self._used + self._ahead_idle else None)
                self._more.clear()

    def _wanted(self, ready: int) -> int:
        """Up to which chunk, now; no further than is ready when that is enough."""
        ahead = self._ahead_idle if self._idle() else self._prefault
        return max(ready, min(self._chunks, self._used + ahead))

    def _idle(self) -> bool:
        return time.monotonic() - self._used_s >= _IDLE_S

    def _make_ready(self, begin: int, end: int) -> bool:
        for region in self._regions:
            # A large page of each region may be due at once, which takes a core half a second: a step goes first.
            while begin >= self._used + self._prefault and not self._idle():
                self._more.wait(_IDLE_S)
                self._more.clear()
            first = (region + begin * self._chunk_bytes) // _PAGE * _PAGE
            if _madvise(first, region + end * self._chunk_bytes - first, _POPULATE_WRITE):
                return False
        return True
