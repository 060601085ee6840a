"""What an HTTP request says of its caller: the API key, the class, how long it may take, under which name.

Passes the key on without knowing whose it is. A name that the caller chose is told apart from the same name chosen by
another: it is sent on with a digest of the key.
"""

import hashlib
import uuid
from collections.abc import Mapping
from typing import Final

import msgspec
from starlette.datastructures import Headers

from noria.proto.frontdoor import REQUEST_ID_CHARACTERS_MAX
from noria.services.gateway.api import event_stream
from noria.services.gateway.api.errors import invalid

CLASS_HEADER: Final = "x-noria-class"
TTL_FIRST_HEADER: Final = "x-noria-ttl-first-ms"
TTL_HEADER: Final = "x-noria-ttl-ms"
KEY_HEADER: Final = "idempotency-key"
ID_HEADER: Final = "x-request-id"
BACKGROUND_HEADER: Final = "x-noria-background"
# OpenAI's service tiers; others are taken for names of classes. Empty is the tenant's own default.
TIERS: Final[Mapping[str, str]] = {"auto": "", "default": "", "priority": "interactive", "flex": "batch"}
_DIGEST_CHARACTERS: Final = 16


class Caller(msgspec.Struct, frozen=True):
    """Who asks and how. name: the caller's own for the request, or empty; keep: it is an idempotency key.

    background: the answer is fetched later. last_event: the id of the last event that it has of a broken stream.
    """

    credential: str
    traffic_class: str
    ttl_first_ms: int | None
    ttl_ms: int | None
    name: str
    keep: bool
    background: bool = False
    last_event: str = ""

    def wire_name(self, drawn: str) -> str:
        """What the request is called inside; `drawn` where the caller gave no name."""
        if self.background:
            return marked(drawn, self.credential)
        return marked(self.name, self.credential) if self.name else drawn


def marked(name: str, credential: str) -> str:
    """A name that may not be its sender's alone, told apart from the same name under another API key."""
    return f"{name}~{_digest(credential)[:_DIGEST_CHARACTERS]}" if credential else name


def response_id(prefix: str, caller: Caller) -> str:
    """The id of an answer: the same for the same name, so that it can be asked for again; else drawn."""
    if not caller.name:
        return f"{prefix}-{uuid.uuid4().hex}"
    return f"{prefix}-{_digest(marked(caller.name, caller.credential))[:32]}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def caller(
    headers: Headers,
    service_tier: str | None,
    ttl_first_ms: int | None,
    ttl_ms: int | None,
    *,
    background: bool = False,
) -> Caller:
    """Read the headers, which win over the body's fields. Raises HttpError 400."""
    credential = bearer(headers)
    room = REQUEST_ID_CHARACTERS_MAX - (_DIGEST_CHARACTERS + 1 if credential else 0)
    key = _name(headers, KEY_HEADER, "Idempotency-Key", room)
    tier = service_tier or ""
    return Caller(
        credential=credential,
        traffic_class=headers.get(CLASS_HEADER, "") or TIERS.get(tier, tier),
        ttl_first_ms=_milliseconds(headers, TTL_FIRST_HEADER, "X-Noria-TTL-First-Ms", ttl_first_ms),
        ttl_ms=_milliseconds(headers, TTL_HEADER, "X-Noria-TTL-Ms", ttl_ms),
        name=key or _name(headers, ID_HEADER, "X-Request-Id", room),
        keep=bool(key),
        background=_flag(headers, BACKGROUND_HEADER, "X-Noria-Background", background),
        last_event=headers.get(event_stream.HEADER, ""),
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


def _flag(headers: Headers, header: str, shown: str, otherwise: bool) -> bool:
    given = headers.get(header)
    if given is None:
        return otherwise
    if given.lower() not in ("true", "false", "1", "0"):
        raise invalid(f"{shown} must be true or false", shown)
    return given.lower() in ("true", "1")


def _milliseconds(headers: Headers, header: str, shown: str, otherwise: int | None) -> int | None:
    given = headers.get(header)
    if given is None:
        return otherwise
    if not given.isascii() or not given.isdecimal() or len(given) > 12:
        raise invalid(f"{shown} must be a number of milliseconds", shown)
    return int(given)
