"""What one request holds of the cache, and what is said of holdings: needs, counts, what came of publishing."""

from dataclasses import dataclass, field

from noria.services.scheduler.core.cache.pages import Page, Prefix

Tables = tuple[list[int], ...]
Needs = tuple[int, ...]


@dataclass(slots=True, eq=False)
class RequestBlocks:
    """What one request holds of the cache while it has a slot, and after that until no step touches it.

    tables: one block table for each group. pages: the published pages among their entries, from the first on.
    due: the position at which the next page is full; never, when pages are not shared. claimed: up to which page
    others wait for it.
    """

    tables: Tables
    pages: list[Page]
    prefix: Prefix
    due: int
    claimed: int = 0

    @property
    def pages_long(self) -> int:
        """How many pages its longest table has."""
        tables = self.tables
        return len(tables[0]) if len(tables) == 1 else max(map(len, tables))

    @property
    def blocks(self) -> int:
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
    """What came of publishing: pages whose own block another stream's replaced, and the blocks that became free."""

    replaced: list[int] = field(default_factory=list)
    spare: list[tuple[int, ...]] = field(default_factory=list)
