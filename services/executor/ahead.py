"""Memory of the cache made ready before it is used, in a thread of its own.

A page of memory costs most when it is first written: the system clears it, and a hypervisor may have to find it. In steps
that write keys and values where nobody wrote before, on a virtual machine that gives free memory back to its host, this
was a fifth of a closed loop's time. It knows neither blocks nor requests: chunks of the pool, of which the lowest are used
first.
"""

import ctypes
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

AHEAD_BYTES: Final = 192 << 20
"""How much is ready beyond the highest chunk that was used: what a start may add to resident memory."""

_PIECE_BYTES: Final = 16 << 20
_POPULATE_WRITE: Final = 23
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


class Ahead:
    """Keeps the first chunks of each region ready, `AHEAD_BYTES` further than was used.

    regions: addresses, each of `chunks` times `chunk_bytes` of zeroed memory that lives as long as the process. On systems
    that cannot make memory ready (Linux before 5.14) nothing happens.
    """

    def __init__(self, regions: Sequence[int], chunk_bytes: int, chunks: int, ahead_bytes: int = AHEAD_BYTES) -> None:
        self._regions, self._chunk_bytes, self._chunks = regions, chunk_bytes, chunks
        per_chunk = max(1, chunk_bytes * len(regions))
        self._ahead = max(1, ahead_bytes // per_chunk)
        self._piece = max(1, _PIECE_BYTES // per_chunk)
        self._wanted = min(chunks, self._ahead)
        self._more = threading.Event()
        self._more.set()
        threading.Thread(target=self._run, name="ahead", daemon=True).start()

    def reach(self, chunk: int) -> None:
        """A chunk is about to be used."""
        wanted = min(self._chunks, chunk + 1 + self._ahead)
        if wanted >= min(self._chunks, self._wanted + self._piece):
            self._wanted = wanted
            self._more.set()

    def _run(self) -> None:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
        ready, madvise = 0, ctypes.CDLL(None).madvise
        madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        while ready < self._chunks:
            self._more.wait()
            self._more.clear()
            while ready < (wanted := self._wanted):
                end = min(wanted, ready + self._piece)
                for region in self._regions:
                    first = (region + ready * self._chunk_bytes) // _PAGE * _PAGE
                    if madvise(first, region + end * self._chunk_bytes - first, _POPULATE_WRITE):
                        return
                ready = end
