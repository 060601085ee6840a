"""What an HTTP request says of its caller: the API key, the class, how long it may take, under which name.

Passes the key on without knowing whose it is. A name that the caller chose is told apart from the same name chosen by
another: it is sent on with a digest of the key.
"""

import hashlib
from collections.abc import Mapping
from typing import Final

import msgspec
from starlette.datastructures import Headers

from noria.services.gateway.errors import invalid

CLASS_HEADER: Final = "x-noria-class"
TTL_FIRST_HEADER: Final = "x-noria-ttl-first-ms"
TTL_HEADER: Final = "x-noria-ttl-ms"
KEY_HEADER: Final = "idempotency-key"
ID_HEADER: Final = "x-request-id"
# OpenAI's service tiers; others are taken for names of classes. Empty is the tenant's own default.
TIERS: Final[Mapping[str, str]] = {"auto": "", "default": "", "priority": "interactive", "flex": "batch"}
_DIGEST_CHARACTERS: Final = 16


class Caller(msgspec.Struct, frozen=True):
    """Who asks and how. name: the caller's own for the request, or empty; keep: it is an idempotency key."""

    credential: str
    traffic_class: str
    ttl_first_ms: int | None
    ttl_ms: int | None
    name: str
    keep: bool

    def wire_name(self, drawn: str) -> str:
        """What the request is called inside; `drawn` where the caller gave no name."""
        if not self.name or not self.credential:
            return self.name or drawn
        digest = hashlib.sha256(self.credential.encode("utf-8", "surrogatepass")).hexdigest()
        return f"{self.name}~{digest[:_DIGEST_CHARACTERS]}"


def caller(
    headers: Headers, service_tier: str | None, ttl_first_ms: int | None, ttl_ms: int | None, id_characters_max: int
) -> Caller:
    """Read the headers, which win over the body's fields. Raises HttpError 400."""
    credential = bearer(headers)
    room = id_characters_max - (_DIGEST_CHARACTERS + 1 if credential else 0)
    key = _name(headers, KEY_HEADER, "Idempotency-Key", room)
    tier = service_tier or ""
    return Caller(
        credential=credential,
        traffic_class=headers.get(CLASS_HEADER, "") or TIERS.get(tier, tier),
        ttl_first_ms=_milliseconds(headers, TTL_FIRST_HEADER, "X-Noria-TTL-First-Ms", ttl_first_ms),
        ttl_ms=_milliseconds(headers, TTL_HEADER, "X-Noria-TTL-Ms", ttl_ms),
        name=key or _name(headers, ID_HEADER, "X-Request-Id", room),
        keep=bool(key),
    )


def bearer(headers: Headers) -> str:
    """The API key of `Authorization: Bearer`, or empty."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _name(headers: Headers, header: str, shown: str, characters_max: int) -> str:
    given = headers.get(header)
    if not given:
        return ""
    if len(given) > characters_max or not all("!" <= each <= "~" for each in given):
        raise invalid(f"{shown} must be up to {characters_max} printable ASCII characters", shown)
    return given


def _milliseconds(headers: Headers, header: str, shown: str, otherwise: int | None) -> int | None:
    given = headers.get(header)
    if given is None:
        return otherwise
    if not given.isascii() or not given.isdecimal() or len(given) > 12:
        raise invalid(f"{shown} must be a number of milliseconds", shown)
    return int(given)
