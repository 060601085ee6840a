"""Traffic classes and tenants of one run, as the scheduler and admission know them."""

import hashlib
import random
from dataclasses import dataclass, field, replace

from fakes.world import draw_rules

from noria.proto.frontdoor import Code, Generate
from noria.services.admission.core.tenants.tenant_policy import ClassRule, TenantPolicy, TenantRule
from noria.services.scheduler.core.interface.traffic_rules import FairRules

# What every request of these runs fits into, whatever limits are drawn: three choices of 14 tokens after 21 each.
_STREAMS_MIN = 3
_TOKENS_MIN = 120


@dataclass(frozen=True, slots=True)
class Tenancy:
    """Classes and tenants of one run. rules: the scheduler's. policy: admission's. Without drawn classes, the built-in ones."""

    rules: FairRules = field(default_factory=FairRules)
    policy: TenantPolicy = field(default_factory=TenantPolicy)

    def draw_sender(self, draw: random.Random) -> tuple[str, str]:
        """Draw a credential, and a class that it may use."""
        if not self.policy.tenants:
            return "", ""
        tenant = draw.choice(self.policy.tenants)
        return _key(tenant.name), draw.choice(["", *tenant.classes])

    def class_of(self, request: Generate) -> ClassRule:
        """Return the class that a request belongs to."""
        tenant = self.policy.identify(request.credential)
        assert tenant is not None
        return self.policy.classes[request.traffic_class or tenant.default_class]

    def ttls_ms(self, request: Generate) -> tuple[int | None, int | None]:
        """Return a request's deadlines for its first token and for its end, in milliseconds; None without one."""
        rule = self.class_of(request)
        first, whole = request.ttl_first_ms, request.ttl_ms
        return (rule.ttl_first_ms if first is None else first), (rule.ttl_ms if whole is None else whole)

    def refusals(self, request: Generate) -> set[Code]:
        """Return the codes with which a request may be refused for good: deadline too short, or cache reserved by other classes."""
        codes = set()
        if self.ttls_ms(request) != (None, None):
            codes.add(Code.DEADLINE)
        if any(each.isolated for each in self.rules.classes):
            codes.add(Code.CONTEXT_LENGTH)
        return codes

    def may_be_shed(self, request: Generate) -> bool:
        """Return whether a request may be dropped in favour of a class of higher rank."""
        rule = self.class_of(request)
        return not rule.isolated and any(each.rank > rule.rank for each in self.policy.classes.values())


def draw_tenancy(draw: random.Random) -> Tenancy:
    """Draw classes of all kinds, and two tenants of which one may have limits."""
    rules = draw_servable_rules(draw)
    classes = {
        each.name: ClassRule(
            each.name,
            rank=each.rank,
            isolated=each.isolated,
            ttl_first_ms=draw.choice([None, None, None, 400]),
            queue_requests_max=draw.choice([None, None, _STREAMS_MIN]),
            queue_tokens_max=draw.choice([None, None, _TOKENS_MIN]),
        )
        for each in rules.classes
    }
    names = tuple(classes)
    allowed = tuple(draw.sample(names, draw.randint(1, len(names))))
    limited = TenantRule(
        "b",
        classes=allowed,
        default_class=allowed[0],
        keys=(hashlib.sha256(_key("b").encode()).digest(),),
        concurrency_max=draw.choice([None, _STREAMS_MIN, 5]),
        tokens_per_minute=draw.choice([None, 6_000]),
        burst_tokens=_TOKENS_MIN,
    )
    free = TenantRule("a", names, "standard", (hashlib.sha256(_key("a").encode()).digest(),))
    return Tenancy(rules, TenantPolicy(classes, (free, limited)))


def draw_servable_rules(draw: random.Random) -> FairRules:
    """Draw rules under which each class can be served: an isolated one has a slot."""
    rules = draw_rules(draw)
    return replace(
        rules,
        classes=tuple(
            replace(each, reserved_slots=max(1, each.reserved_slots)) if each.isolated else each
            for each in rules.classes
        ),
    )


def _key(tenant: str) -> str:
    return f"key of {tenant}"
