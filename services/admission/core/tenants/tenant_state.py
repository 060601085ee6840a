"""What each tenant has under way and may still use: its concurrency, its token bucket, how long its answers are.

A request is charged for its prompt and for the output it may make when it is accepted; what it did not use is given back
at its end.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from noria.proto.frontdoor import Code
from noria.services.admission.core.tenants.refusal import Refusal
from noria.services.admission.core.tenants.tenant_policy import TenantPolicy, TenantRule
from noria.services.admission.core.tenants.token_bucket import TokenBucket

_OUTPUTS_KEPT: Final = 128
_OUTPUT_GUESS: Final = 256  # tokens of an answer before any is known
_QUANTILE: Final = 0.9
_SMOOTHING: Final = 0.1
_RETRY_MS_MIN: Final = 100
_RETRY_MS_MAX: Final = 60_000
_RETRY_MS_USUAL: Final = 1_000


@dataclass(slots=True, eq=False)
class TenantState:
    """What one tenant has in flight and may still use. streams: reserved or unfinished. outputs: lengths of its latest answers, in tokens.

    bucket_changed: its bucket has been drawn from since it was last put on record.
    """

    rule: TenantRule
    bucket: TokenBucket | None = None
    streams: int = 0
    outputs: deque[int] = field(default_factory=lambda: deque(maxlen=_OUTPUTS_KEPT))
    stream_ms: float = 0.0
    bucket_changed: bool = False

    def busy(self, n: int, likely: int, now_ns: int) -> Refusal | None:
        """Refuse a request before it is tokenized if the tenant has too many streams, or its bucket is empty.

        likely: about how many tokens the request has, so that the wait that is named will do.
        """
        most = self.rule.concurrency_max
        if most is not None and self.streams + n > most:
            if n > most:
                return Refusal(Code.INVALID, f"n must be at most {most} for this API key, not {n}", "n")
            return Refusal(
                Code.QUOTA,
                f"{self.streams} answers are under way for this API key and it may have {most} at a time; "
                "try again when one has ended",
                "",
                self._next_end_ms(),
            )
        if self.bucket is not None and self.bucket.level(now_ns) < 1:
            return self._rate(self.bucket.wait_ms(min(max(likely, 1), self.bucket.capacity), now_ns))
        return None

    def expected(self, limit: int) -> int:
        """How many tokens an answer of at most `limit` will likely have: the tenant's ninth decile so far."""
        if not self.outputs:
            return min(_OUTPUT_GUESS, limit)
        ordered = sorted(self.outputs)
        return max(1, min(limit, ordered[int(_QUANTILE * (len(ordered) - 1) + 0.5)]))

    def reservation(self, prompt: int, n: int, given: int | None, limit: int) -> int:
        """Tokens to charge beforehand: the prompt, and for each answer `max_tokens` where given, else what is expected."""
        if given is not None:
            return prompt + n * min(given, limit)
        answer = self.expected(limit)
        if self.bucket is not None:
            answer = max(1, min(answer, (self.bucket.capacity - prompt) // n))
        return prompt + n * answer

    def charge(self, tokens: int, now_ns: int) -> Refusal | None:
        """Take a reservation out of the bucket. Returns a refusal with the time to wait if the bucket has too little."""
        if self.bucket is None:
            return None
        refusal = self.affords(tokens, now_ns)
        if refusal is None:
            self.bucket.take(tokens, now_ns)
            self.bucket_changed = True
        return refusal

    def affords(self, tokens: int, now_ns: int) -> Refusal | None:
        """The refusal that `charge` would return, without taking tokens; None if the bucket has enough."""
        if self.bucket is None:
            return None
        if tokens > self.bucket.capacity:
            return Refusal(
                Code.INVALID,
                f"prompt and max_tokens together are {tokens} tokens; this API key may use at most "
                f"{self.bucket.capacity} at once: lower max_tokens or shorten the prompt",
                "max_tokens",
            )
        wait_ms = self.bucket.wait_ms(tokens, now_ns)
        return self._rate(wait_ms) if wait_ms else None

    def reconcile(self, reserved: int, used: int, now_ns: int) -> None:
        """Correct the bucket at the end of a request: give back what it did not use, or take what it used beyond."""
        if self.bucket is not None:
            self.bucket.take(used - reserved, now_ns)
            self.bucket_changed = True

    def ended(self, output_tokens: int, duration_ms: float, *, whole: bool) -> None:
        """Note the length and duration of an ended stream; whole: it was not cut short, so its length predicts others."""
        if whole:
            self.outputs.append(output_tokens)
        old = self.stream_ms
        self.stream_ms = duration_ms if not old else old + _SMOOTHING * (duration_ms - old)

    def _next_end_ms(self) -> int:
        likely = self.stream_ms / max(self.streams, 1) or _RETRY_MS_USUAL
        return int(min(max(likely, _RETRY_MS_MIN), _RETRY_MS_MAX))

    def _rate(self, wait_ms: int) -> Refusal:
        return Refusal(
            Code.QUOTA,
            f"this API key has used its {self.rule.tokens_per_minute} tokens a minute; try again later",
            "",
            wait_ms,
        )


class TenantStates:
    """The state of every tenant that has sent a request, by name."""

    def __init__(self) -> None:
        self._tenants: dict[str, TenantState] = {}

    def __iter__(self) -> Iterator[TenantState]:
        return iter(self._tenants.values())

    def get(self, rule: TenantRule, now_ns: int) -> TenantState:
        """The state of a tenant, created at its first request."""
        tenant = self._tenants.get(rule.name)
        if tenant is None:
            tenant = self._tenants[rule.name] = TenantState(rule)
            self._set_bucket(tenant, now_ns)
        return tenant

    def named(self, name: str) -> TenantState:
        """A tenant that has something under way."""
        return self._tenants[name]

    def charge_unreserved(self, name: str, tokens: int, now_ns: int) -> None:
        """Take tokens that were used and not reserved from a tenant's bucket, if the tenant is still known."""
        tenant = self._tenants.get(name)
        if tenant is not None:
            tenant.reconcile(0, tokens, now_ns)

    def apply_policy(self, policy: TenantPolicy, now_ns: int) -> None:
        """Take over changed limits. A tenant that is no longer configured keeps its requests, and may come back."""
        limits = {each.name: each for each in policy.tenants}
        for name, tenant in self._tenants.items():
            if name in limits:
                tenant.rule = limits[name]
                self._set_bucket(tenant, now_ns)

    def levels(self, now_ns: int) -> tuple[tuple[str, float], ...]:
        """The levels, by tenant, of buckets that have changed since the last journal page."""
        return tuple(
            (each.rule.name, each.bucket.level(now_ns)) for each in self if each.bucket_changed and each.bucket
        )

    def recorded(self) -> None:
        """Note that the journal has the levels of all buckets."""
        for tenant in self:
            tenant.bucket_changed = False

    def refill(self, rule: TenantRule, level: float, since_ns: int, now_ns: int) -> None:
        """Set a tenant's bucket to the level from the journal; it has refilled since then."""
        bucket = self.get(rule, now_ns).bucket
        if bucket is not None:
            bucket.refill(level, since_ns)

    def check(self) -> None:
        """Assert that no tenant has a negative number of streams."""
        assert all(each.streams >= 0 for each in self)

    def _set_bucket(self, tenant: TenantState, now_ns: int) -> None:
        rule = tenant.rule
        if rule.tokens_per_minute is None:
            tenant.bucket = None
            return
        burst = rule.burst_tokens or rule.tokens_per_minute
        if tenant.bucket is None:
            tenant.bucket = TokenBucket(rule.tokens_per_minute, burst, now_ns)
        else:
            tenant.bucket.resize(rule.tokens_per_minute, burst, now_ns)
