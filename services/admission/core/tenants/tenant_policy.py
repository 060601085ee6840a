"""Traffic classes and tenants with their limits, and which tenant a credential belongs to.

Decides from the configuration alone. Knows nothing of load, nor of what a tenant has used so far.
"""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

OPEN_TENANT: Final = "default"
STANDARD: Final = "standard"
ADMIN: Final = "admin"


@dataclass(frozen=True, slots=True)
class ClassRule:
    """The limits and rank of a traffic class; None is no limit.

    rank: a class may be shed for one of higher rank. isolated: it has a small pool of its own. Durations: the time to
    live of requests that name none. queue_requests_max, queue_tokens_max: streams without a token yet, and the tokens
    of their prompts.
    """

    name: str
    rank: int = 1
    isolated: bool = False
    prompt_tokens_max: int | None = None
    output_tokens_max: int | None = None
    ttl_first_ms: int | None = None
    ttl_ms: int | None = None
    queue_requests_max: int | None = None
    queue_tokens_max: int | None = None


@dataclass(frozen=True, slots=True)
class TenantRule:
    """The classes, credentials and limits of a tenant; None is no limit. keys: SHA-256 digests of its credentials."""

    name: str
    classes: tuple[str, ...]
    default_class: str
    keys: tuple[bytes, ...] = ()
    concurrency_max: int | None = None
    tokens_per_minute: int | None = None
    burst_tokens: int | None = None
    prompt_tokens_max: int | None = None
    output_tokens_max: int | None = None
    n_max: int | None = None


def _built_in() -> Mapping[str, ClassRule]:
    return {name: ClassRule(name) for name in (STANDARD, "interactive", "batch", ADMIN)}


@dataclass(frozen=True, slots=True)
class TenantPolicy:
    """All classes and tenants. Without tenants there is one, which needs no credential and may use every class."""

    classes: Mapping[str, ClassRule] = field(default_factory=_built_in)
    tenants: tuple[TenantRule, ...] = ()

    def named(self, name: str) -> TenantRule:
        """The rule of a tenant; one that is gone meanwhile has no limits and no credentials."""
        if not self.tenants:
            return self._open()
        return next((each for each in self.tenants if each.name == name), TenantRule(name, (), ""))

    def identify(self, credential: str) -> TenantRule | None:
        """The tenant that a credential belongs to; None if it is unknown."""
        if not self.tenants:
            return self._open()
        given = hashlib.sha256(credential.encode("utf-8", "surrogatepass")).digest()
        found = None
        # Every key is compared to its end whichever matches, so that the time taken tells nothing of any of them.
        for tenant in self.tenants:
            for key in tenant.keys:
                if hmac.compare_digest(key, given):
                    found = tenant
        return found

    def _open(self) -> TenantRule:
        names = tuple(self.classes)
        return TenantRule(OPEN_TENANT, names, STANDARD if STANDARD in self.classes else names[0])
