"""Requests that wait for a page which another is about to compute: a twin of theirs, as far as their prefixes go.

They hold no blocks. Each waits for one page: the last in an unbroken row that one twin has claimed. It is woken when
that page is published, and when the twin gives the claim up, whatever the reason.
"""

from typing import NamedTuple

from noria.services.scheduler.core.cache.request_blocks import RequestBlocks
from noria.services.scheduler.core.state.request import Request


class PrefixClaim(NamedTuple):
    """Who computes a page, and what it holds. One for all pages that it claims at once."""

    request: Request
    blocks: RequestBlocks


class PrefixWaiters:
    """Claims on pages by key, and who waits for which."""

    def __init__(self) -> None:
        self._claims: dict[bytes, PrefixClaim] = {}
        self._waiting: dict[bytes, list[Request]] = {}

    def claim(self, request: Request, blocks: RequestBlocks) -> None:
        """A request begins to compute its prefix: others may wait for its full pages."""
        prefix, claims = blocks.prefix, self._claims
        blocks.claimed = max(len(blocks.pages), prefix.known // prefix.page_tokens)
        claim = PrefixClaim(request, blocks)
        for number in range(len(blocks.pages), blocks.claimed):
            claims.setdefault(prefix.key(number), claim)

    def wait_if_claimed(self, request: Request, found: int) -> bool:
        """Let a request wait when the page after the `found` published ones of its prefix is claimed.

        Nobody waits for a request of a lower class, or of another one beside it: that one's share may be far smaller.
        """
        prefix = request.cache.prefix
        assert prefix is not None
        limit, claims = prefix.shareable, self._claims
        if found >= limit:
            return False
        twin = claims.get(prefix.key(found))
        if twin is None or not request.billing.may_wait_for(twin.request.billing):
            return False
        last = found
        while last + 1 < limit and claims.get(prefix.key(last + 1)) is twin:
            last += 1
        self._waiting.setdefault(prefix.key(last), []).append(request)
        return True

    def resolve(self, blocks: RequestBlocks, first: int, end: int) -> list[Request]:
        """The blocks's pages from `first` to before `end` are published or given up; returns who waited for them."""
        prefix = blocks.prefix
        woken: list[Request] = []
        for number in range(first, min(end, blocks.claimed)):
            key = prefix.key(number)
            claim = self._claims.get(key)
            if claim is not None and claim.blocks is blocks:
                del self._claims[key]
                woken += self._waiting.pop(key, ())
        return woken

    def give_up(self, blocks: RequestBlocks, page: int) -> list[Request]:
        """The blocks will compute no page from `page` on; returns who waited for them."""
        woken = self.resolve(blocks, page, blocks.claimed)
        blocks.claimed = min(blocks.claimed, page)
        return woken

    def release_all(self) -> list[Request]:
        """Nobody waits any more: the policy has changed, and with it perhaps who may wait for whom. Returns who waited."""
        woken = [request for requests in self._waiting.values() for request in requests]
        self._waiting.clear()
        return woken

    def check(self, held: list[RequestBlocks]) -> None:
        """Only what is being computed is claimed, and nobody waits for what is not."""
        for key, (_, blocks) in self._claims.items():
            assert blocks in held, "a claim outlives its blocks"
            assert any(blocks.prefix.key(page) == key for page in range(len(blocks.pages), blocks.claimed))
        assert self._waiting.keys() <= self._claims.keys(), "a request waits for nothing"
