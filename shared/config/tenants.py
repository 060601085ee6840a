"""Traffic classes and tenants as the configuration declares them, and the classes that are built in.

Declares names, types, bounds and help, nothing else: admission enforces limits, the scheduler shares. They are set in
the TOML file alone, as `[classes.NAME]` and `[tenants.NAME]`, and are the part of it that is read again at SIGHUP.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

CLASS_NAME: Final = r"[a-z][a-z0-9_-]{0,31}"
TENANT_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
STANDARD: Final = "standard"
KEY_PREFIX: Final = "sha256:"

_Tokens = Annotated[int, Meta(ge=1)]
_Milliseconds = Annotated[int, Meta(ge=1, le=2**31)]
_KeyHash = Annotated[str, Meta(pattern=r"^sha256:[0-9a-f]{64}$")]


class ClassSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the requests of one class are treated."""

    rank: Annotated[int, Meta(description="Whom it may preempt: classes of lower rank.", ge=0, le=1000)] = 1
    weight: Annotated[float, Meta(description="Share of the tokens while others wait.", gt=0, le=1000)] = 1.0
    prompt_tokens_max: Annotated[_Tokens | None, Meta(description="Longest prompt.")] = None
    output_tokens_max: Annotated[_Tokens | None, Meta(description="Largest max_tokens; it stands in for none.")] = None
    reserved_slots: Annotated[
        int, Meta(description="Places in a step that it gets back within one preemption.", ge=0, le=4096)
    ] = 0
    reserved_cache: Annotated[
        float,
        Meta(
            description="Share of the cache that it gets back within one preemption; an isolated class has at least one "
            "request of its limits, if that is no more than a quarter.",
            ge=0,
            le=0.9,
        ),
    ] = 0.0
    preemptible: Annotated[bool, Meta(description="Whether a class of higher rank may push it aside.")] = True
    isolated: Annotated[
        bool, Meta(description="A pool of its own: nobody else uses what it reserves, and it uses nothing else.")
    ] = False
    quantum_tokens: Annotated[
        _Tokens | None, Meta(description="Output after which a request lets others of its class go first.")
    ] = None
    itl_target_ms: Annotated[
        Annotated[float, Meta(gt=0)] | None, Meta(description="Time between tokens that steps are sized to keep.")
    ] = None
    ttl_first_ms: Annotated[
        _Milliseconds | None, Meta(description="Time to the first token where a request names none.")
    ] = None
    ttl_ms: Annotated[_Milliseconds | None, Meta(description="Time to the end where a request names none.")] = None
    queue_requests_max: Annotated[
        _Tokens | None, Meta(description="Waiting streams accepted; scheduler.queue_requests_max bounds all.")
    ] = None
    queue_tokens_max: Annotated[
        _Tokens | None, Meta(description="Prompt tokens of waiting streams; scheduler.queue_tokens_max bounds all.")
    ] = None


class TenantSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who a tenant is and how much it may ask for."""

    keys: Annotated[
        tuple[_KeyHash, ...], Meta(description="Hashes of its API keys, as `noria keys new` prints them.")
    ] = ()
    weight: Annotated[float, Meta(description="Share of its class's tokens while others wait.", gt=0, le=1000)] = 1.0
    classes: Annotated[
        tuple[str, ...], Meta(description="Classes it may use; all that are not isolated where empty.")
    ] = ()
    default_class: Annotated[str, Meta(description="Class of requests that name none; standard, or its first.")] = ""
    concurrency_max: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="Unfinished streams at one time.")
    ] = None
    tokens_per_minute: Annotated[
        _Tokens | None, Meta(description="Prompt and output tokens a minute, in the long run.")
    ] = None
    burst_tokens: Annotated[
        _Tokens | None, Meta(description="Tokens it may use at once after a pause; a minute's worth where absent.")
    ] = None
    prompt_tokens_max: Annotated[_Tokens | None, Meta(description="Longest prompt.")] = None
    output_tokens_max: Annotated[_Tokens | None, Meta(description="Largest max_tokens; it stands in for none.")] = None
    n_max: Annotated[Annotated[int, Meta(ge=1)] | None, Meta(description="Choices of one request.")] = None


BUILT_IN: Final[dict[str, ClassSettings]] = {
    "interactive": ClassSettings(
        rank=2,
        weight=4.0,
        prompt_tokens_max=4096,
        reserved_slots=4,
        reserved_cache=0.1,
        preemptible=False,
        itl_target_ms=100.0,
    ),
    STANDARD: ClassSettings(rank=1, weight=2.0),
    "batch": ClassSettings(rank=0, weight=1.0, quantum_tokens=512),
    "admin": ClassSettings(
        rank=3,
        prompt_tokens_max=2048,
        output_tokens_max=512,
        reserved_slots=1,
        reserved_cache=0.02,
        preemptible=False,
        isolated=True,
        queue_requests_max=16,
    ),
}


def allowed_classes(tenant: TenantSettings, classes: dict[str, ClassSettings]) -> tuple[str, ...]:
    """The classes a tenant may use, in order; the first that is left when none is named is `default_class_of`."""
    return tenant.classes or tuple(name for name, each in classes.items() if not each.isolated)


def default_class_of(tenant: TenantSettings, classes: dict[str, ClassSettings]) -> str:
    """The class of a tenant's requests that name none."""
    allowed = allowed_classes(tenant, classes)
    return tenant.default_class or (STANDARD if STANDARD in allowed else allowed[0])
