"""Requests that wait for a page of their prefix which another request is about to compute.

They hold no blocks. Each waits for one page: the last in an unbroken row that one other request has claimed. It is woken when
that page is published, and when the other gives the claim up, whatever the reason.
"""

from typing import NamedTuple

from noria.services.scheduler.core.cache.request_blocks import RequestBlocks
from noria.services.scheduler.core.state.request import Request


class PrefixClaim(NamedTuple):
    """The request that computes a page, and its blocks. One claim stands for all pages that it claims at once."""

    request: Request
    blocks: RequestBlocks


class PrefixWaiters:
    """Claims on pages by key, and the requests that wait for each."""

    def __init__(self) -> None:
        self._claims: dict[bytes, PrefixClaim] = {}
        self._waiting: dict[bytes, list[Request]] = {}

    def claim(self, request: Request, blocks: RequestBlocks) -> None:
        """Let others wait for the full pages of a request that begins to compute its prefix."""
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
        claim = claims.get(prefix.key(found))
        if claim is None or not request.billing.may_wait_for(claim.request.billing):
            return False
        last = found
        while last + 1 < limit and claims.get(prefix.key(last + 1)) is claim:
            last += 1
        self._waiting.setdefault(prefix.key(last), []).append(request)
        return True

    def resolve(self, blocks: RequestBlocks, first: int, end: int) -> list[Request]:
        """Drop the claims on pages `first` to before `end`, published or given up; returns who waited for them."""
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
        """Drop the claims on pages from `page` on, which will not be computed; returns who waited for them."""
        woken = self.resolve(blocks, page, blocks.claimed)
        blocks.claimed = min(blocks.claimed, page)
        return woken

    def release_all(self) -> list[Request]:
        """Let nobody wait any more: under another policy other requests may wait. Returns who waited."""
        woken = [request for requests in self._waiting.values() for request in requests]
        self._waiting.clear()
        return woken

    def check(self, held: list[RequestBlocks]) -> None:
        """Raises AssertionError when a claim outlives its request, or somebody waits for an unclaimed page."""
        for key, (_, blocks) in self._claims.items():
            assert blocks in held, "a claim outlives its blocks"
            assert any(blocks.prefix.key(page) == key for page in range(len(blocks.pages), blocks.claimed))
        assert self._waiting.keys() <= self._claims.keys(), "a request waits for nothing"
