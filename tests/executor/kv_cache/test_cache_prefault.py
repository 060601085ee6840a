"""Memory is made ready before it is used, and not much more of it."""

import ctypes
import mmap
import sys
import time

import pytest

from noria.services.executor.kv_cache.cache_prefault import CachePrefault

PAGE = mmap.PAGESIZE
CHUNK_BYTES, CHUNKS, AHEAD_CHUNKS = PAGE, 4096, 64


class Regions:
    """Two regions of anonymous memory, and which of their chunks are resident."""

    def __init__(self) -> None:
        self.size = CHUNK_BYTES * CHUNKS
        self.memory = [mmap.mmap(-1, self.size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) for _ in range(2)]
        for each in self.memory:
            each.madvise(mmap.MADV_NOHUGEPAGE)
        self.addresses = [ctypes.addressof(ctypes.c_char.from_buffer(each)) for each in self.memory]

    def ready(self) -> list[int]:
        """Of each region, how many chunks from the first on are resident."""
        found = []
        for address in self.addresses:
            pages = (ctypes.c_ubyte * CHUNKS)()
            assert not ctypes.CDLL(None).mincore(ctypes.c_void_p(address), ctypes.c_size_t(self.size), pages)
            found.append(next((i for i, page in enumerate(pages) if not page & 1), CHUNKS))
        return found

    def wait(self, chunks: int) -> None:
        """Until so many are."""
        ends_s = time.monotonic() + 60
        while self.ready() != [chunks] * 2:
            assert time.monotonic() < ends_s, self.ready()


@pytest.fixture
def regions() -> Regions:
    found = Regions()
    try:
        found.memory[0].madvise(23, 0, PAGE)
    except OSError:
        pytest.skip("this system cannot make memory ready")
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux makes memory ready")
def test_more_memory_is_made_ready_while_nothing_is_computed(regions: Regions) -> None:
    one = 2 * CHUNK_BYTES
    ahead = CachePrefault(regions.addresses, CHUNK_BYTES, CHUNKS, AHEAD_CHUNKS * one, 4 * AHEAD_CHUNKS * one)
    while min(regions.ready()) <= AHEAD_CHUNKS:
        ahead.reach(0)  # something is computed all the time
    regions.wait(1 + 4 * AHEAD_CHUNKS)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux makes memory ready")
def test_memory_is_ready_a_fixed_distance_before_what_is_used_and_no_further(regions: Regions) -> None:
    distance = AHEAD_CHUNKS * 2 * CHUNK_BYTES
    ahead = CachePrefault(regions.addresses, CHUNK_BYTES, CHUNKS, distance, distance)
    regions.wait(AHEAD_CHUNKS)
    ahead.reach(CHUNKS // 2 + 63)
    regions.wait(CHUNKS // 2 + 64 + AHEAD_CHUNKS)
    ahead.reach(CHUNKS - 1)
    regions.wait(CHUNKS)
