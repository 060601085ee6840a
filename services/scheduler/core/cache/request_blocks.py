"""What one request has of the cache: its ids in pages, each with a key, and the blocks that hold them.

A page's key names its content and all that went before it: a 256-bit hash over the parent's key and the page's ids; the first
parent is a hash of the tenant's salt. So equal keys mean equal prefixes of one tenant; ids are compared nevertheless.
"""

from array import array
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

Tables = tuple[list[int], ...]
Needs = tuple[int, ...]
_KEY_BYTES: Final = 32


class Page:
    """One published page of a prefix: a block of each group whose content is complete.

    users: how many requests have it in their tables. At 0 it is cached: kept until its blocks are needed.
    alive: whether the index still has it. children: published pages that follow it.
    """

    __slots__ = ("alive", "blocks", "children", "ids", "key", "parent", "users")

    def __init__(self, key: bytes, ids: tuple[int, ...], parent: "Page | None", blocks: tuple[int, ...]) -> None:
        self.key = key
        self.ids = ids
        self.parent = parent
        self.blocks = blocks
        self.users = 0
        self.children = 0
        self.alive = True


class Prefix:
    """The full pages of one stream's prompt and output so far; every page is hashed once.

    output: the stream's own list, which grows. found: the pages that were published when last looked for.
    """

    __slots__ = ("_keys", "_output", "_prompt", "_root", "found", "page_tokens")

    def __init__(self, salt: bytes, prompt: tuple[int, ...], output: list[int], page_tokens: int) -> None:
        self.page_tokens = page_tokens
        self.found: list[Page] = []
        self._prompt = prompt
        self._output = output
        self._root = blake2b(salt, digest_size=_KEY_BYTES, person=b"noria salt").digest()
        self._keys: list[bytes] = []

    @property
    def known(self) -> int:
        """How many ids are known."""
        return len(self._prompt) + len(self._output)

    @property
    def shareable(self) -> int:
        """How many pages may come from the cache: at least the last known token is computed."""
        return max(0, (self.known - 1) // self.page_tokens)

    def ids(self, page: int) -> tuple[int, ...]:
        """The ids of a full page."""
        start, prompt = page * self.page_tokens, self._prompt
        end, length = start + self.page_tokens, len(prompt)
        if end <= length:
            return prompt[start:end]
        return (*prompt[start:], *self._output[max(0, start - length) : end - length])

    def key(self, page: int) -> bytes:
        """The key of a full page."""
        keys = self._keys
        while len(keys) <= page:
            ids = self.ids(len(keys))
            assert len(ids) == self.page_tokens, "only full pages have keys"
            parent = keys[-1] if keys else self._root
            keys.append(blake2b(parent + array("q", ids).tobytes(), digest_size=_KEY_BYTES).digest())
        return keys[page]


@dataclass(slots=True, eq=False)
class RequestBlocks:
    """The block tables of one request while it has a slot, and after that until no step touches them.

    tables: one for each group. pages: the published pages among their entries, from the first on. due: the position at which the
    next page is full; never, when pages are not shared. claimed: up to which page others wait for it.
    """

    tables: Tables
    pages: list[Page]
    prefix: Prefix
    due: int
    claimed: int = 0

    @property
    def page_count(self) -> int:
        """How many pages its longest table has."""
        tables = self.tables
        return len(tables[0]) if len(tables) == 1 else max(map(len, tables))

    @property
    def block_count(self) -> int:
        """How many blocks are in its tables."""
        return sum(map(len, self.tables))


@dataclass(slots=True)
class BlockStateCounts:
    """The blocks of one group by state; `blank` counts those that all blank chunks would make."""

    blank: int = 0
    used: int = 0
    shared: int = 0
    cached: int = 0
    host: int = 0


@dataclass(slots=True, eq=False)
class PublishResult:
    """What publishing changed: pages whose own block another stream's replaced, and the blocks that became free."""

    replaced: list[int] = field(default_factory=list)
    spare: list[tuple[int, ...]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class HostBlocks:
    """A request's cache on the host: host block tables, one for each group, that hold `length` positions."""

    tables: tuple[tuple[int, ...], ...]
    length: int
