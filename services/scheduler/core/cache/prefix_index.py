"""The index of published pages: which can be shared, who uses them, and which is given up first.

A page is published when the step that computed it is done. Pages without users stay, in order of last use; a request gives
its pages back from the last to the first, so that a page never comes before those that follow it, and the least recently used
is always one that nothing follows. Every operation costs O(1) per page touched.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from noria.services.scheduler.core.cache.request_blocks import Page, Prefix


class PrefixIndex:
    """Published pages by key. evictions: pages given up since last counted. shared: pages with several users."""

    def __init__(self) -> None:
        self._pages: dict[bytes, Page] = {}
        self._unused: OrderedDict[Page, None] = OrderedDict()
        self.evictions = 0
        self.shared = 0

    def __len__(self) -> int:
        return len(self._pages)

    @property
    def cached(self) -> int:
        """How many pages have no user and may be given up."""
        return len(self._unused)

    def find(self, prefix: Prefix) -> Sequence[Page]:
        """The published pages that a stream may begin with, as many as there are; valid until the index changes.

        What was found before is looked at again only where it changed, so that asking in every step costs little.
        """
        found, limit = prefix.found, prefix.shareable
        while found and not found[-1].alive:
            found.pop()
        while len(found) < limit:
            page = self._get(prefix, len(found), found[-1] if found else None)
            if page is None:
                break
            found.append(page)
        return found if len(found) <= limit else found[:limit]

    def shared_with(self, prefix: Prefix, limit: int) -> list[Page]:
        """The published pages with which a stream's cache of `limit` full pages begins."""
        found: list[Page] = []
        while len(found) < limit:
            page = self._get(prefix, len(found), found[-1] if found else None)
            if page is None:
                break
            found.append(page)
        return found

    def use(self, pages: Iterable[Page]) -> None:
        """Count one more user of these pages: a request has them in its tables."""
        for page in pages:
            if not page.users:
                del self._unused[page]
            page.users += 1
            self.shared += page.users == 2

    def leave(self, pages: Sequence[Page]) -> None:
        """Count one user less of a request's pages, from the first to its last; those without another user stay cached."""
        for page in reversed(pages):
            assert page.users > 0
            page.users -= 1
            self.shared -= page.users == 1
            if not page.users:
                self._unused[page] = None

    def publish(self, prefix: Prefix, number: int, parent: Page | None, blocks: tuple[int, ...]) -> Page | None:
        """Make a computed page known, its request the first user, or join the page that another stream published.

        The caller tells the two apart by the page's blocks. None when another content has the key.
        """
        key, ids = prefix.key(number), prefix.ids(number)
        known = self._pages.get(key)
        if known is not None:
            if known.parent is not parent or known.ids != ids:
                return None
            self.use((known,))
            return known
        page = self._pages[key] = Page(key, ids, parent, blocks)
        page.users = 1
        if parent is not None:
            parent.children += 1
        return page

    def evict(self) -> Page:
        """Give up the least recently used page that nobody uses; its blocks are the caller's."""
        page, _ = self._unused.popitem(last=False)
        assert not page.children, "a page goes before those that follow it"
        page.alive = False
        self.evictions += 1
        del self._pages[page.key]
        if page.parent is not None:
            page.parent.children -= 1
        return page

    def unused(self, pages: Sequence[Page]) -> int:
        """How many of a chain's pages have no user; they are its last ones."""
        return len(pages) - _first(pages, 1)

    def sole(self, pages: Sequence[Page]) -> int:
        """How many of a request's pages nobody else uses; they are its last ones."""
        return len(pages) - _first(pages, 2)

    def check(self, chains: Iterable[Sequence[Page]]) -> list[Page]:
        """Raises AssertionError when users are miscounted or cached pages out of order; returns every page that has blocks."""
        users: dict[Page, int] = dict.fromkeys(self._pages.values(), 0)
        for chain in chains:
            for page, parent in zip(chain, (None, *chain), strict=False):
                assert page.parent is parent, "a chain has a gap"
                users[page] += 1
        assert all(page.users == count for page, count in users.items()), "users are miscounted"
        assert {page for page, count in users.items() if not count} == set(self._unused), "a page is lost"
        assert self.shared == sum(count > 1 for count in users.values())
        seen: set[Page] = set()
        for page in self._unused:
            seen.add(page)
            assert page.parent not in seen, "a page would go before one that follows it"
        children: dict[Page, int] = {}
        for page in self._pages.values():
            if page.parent is not None:
                children[page.parent] = children.get(page.parent, 0) + 1
                assert page.parent.alive, "a page went before one that follows it"
        assert all(page.children == children.get(page, 0) for page in users)
        return list(users)

    def _get(self, prefix: Prefix, number: int, parent: Page | None) -> Page | None:
        page = self._pages.get(prefix.key(number))
        if page is None or page.parent is not parent or page.ids != prefix.ids(number):
            return None
        return page


def _first(pages: Sequence[Page], users: int) -> int:
    """The first of a chain's pages with fewer users; a page never has fewer users than one that follows it."""
    low, high = 0, len(pages)
    while low < high:
        middle = (low + high) // 2
        if pages[middle].users >= users:
            low = middle + 1
        else:
            high = middle
    return low
