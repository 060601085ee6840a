"""Reads the headers of a generation request: API key, traffic class, time limits, request name.

The key is passed on to admission unchecked. A name that the caller chose gets a digest of the key appended, so that two
callers may choose the same name.
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


class CallerOptions(msgspec.Struct, frozen=True):
    """The caller's key and options for one request, from its headers.

    name: chosen by the caller, or empty. keep: the name is an idempotency key. background: the answer is fetched later.
    last_event: the Last-Event-ID of a broken stream, or empty.
    """

    credential: str
    traffic_class: str
    ttl_first_ms: int | None
    ttl_ms: int | None
    name: str
    keep: bool
    background: bool = False
    last_event: str = ""

    def wire_name(self, generated_id: str) -> str:
        """The request's name on the wire; `generated_id` if the caller gave no name."""
        if self.background:
            return scoped_name(generated_id, self.credential)
        return scoped_name(self.name, self.credential) if self.name else generated_id


def scoped_name(name: str, credential: str) -> str:
    """Append a digest of the API key to a name, so that it differs from the same name under another key."""
    return f"{name}~{_digest(credential)[:_DIGEST_CHARACTERS]}" if credential else name


def response_id(prefix: str, caller: CallerOptions) -> str:
    """The id of an answer: fixed by the caller's name if there is one, so that it can be fetched again, else random."""
    if not caller.name:
        return f"{prefix}-{uuid.uuid4().hex}"
    return f"{prefix}-{_digest(scoped_name(caller.name, caller.credential))[:32]}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def read_caller(
    headers: Headers,
    service_tier: str | None,
    ttl_first_ms: int | None,
    ttl_ms: int | None,
    *,
    background: bool = False,
) -> CallerOptions:
    """Read the caller's options; headers win over the body's fields. Raises HttpError 400."""
    credential = bearer_token(headers)
    room = REQUEST_ID_CHARACTERS_MAX - (_DIGEST_CHARACTERS + 1 if credential else 0)
    key = _printable_name(headers, KEY_HEADER, "Idempotency-Key", room)
    tier = service_tier or ""
    return CallerOptions(
        credential=credential,
        traffic_class=headers.get(CLASS_HEADER, "") or TIERS.get(tier, tier),
        ttl_first_ms=_milliseconds(headers, TTL_FIRST_HEADER, "X-Noria-TTL-First-Ms", ttl_first_ms),
        ttl_ms=_milliseconds(headers, TTL_HEADER, "X-Noria-TTL-Ms", ttl_ms),
        name=key or _printable_name(headers, ID_HEADER, "X-Request-Id", room),
        keep=bool(key),
        background=_flag(headers, BACKGROUND_HEADER, "X-Noria-Background", background),
        last_event=headers.get(event_stream.LAST_EVENT_HEADER, ""),
    )


def bearer_token(headers: Headers) -> str:
    """The API key in the header `Authorization: Bearer`, or empty."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _printable_name(headers: Headers, header: str, display_name: str, characters_max: int) -> str:
    given = headers.get(header)
    if not given:
        return ""
    if len(given) > characters_max or not all("!" <= each <= "~" for each in given):
        raise invalid(f"{display_name} must be up to {characters_max} printable ASCII characters", display_name)
    return given


def _flag(headers: Headers, header: str, display_name: str, default: bool) -> bool:
    given = headers.get(header)
    if given is None:
        return default
    if given.lower() not in ("true", "false", "1", "0"):
        raise invalid(f"{display_name} must be true or false", display_name)
    return given.lower() in ("true", "1")


def _milliseconds(headers: Headers, header: str, display_name: str, default: int | None) -> int | None:
    given = headers.get(header)
    if given is None:
        return default
    if not given.isascii() or not given.isdecimal() or len(given) > 12:
        raise invalid(f"{display_name} must be a number of milliseconds", display_name)
    return int(given)
