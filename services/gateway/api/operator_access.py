"""Restricts endpoints to operators: keys that may use the class `admin`, or everybody when no tenants are configured.

Admission decides. While it does not answer, keys that it accepted in the last 10 minutes are accepted, because that is
when operators are needed.
"""

import hashlib
import time
from typing import Final

from starlette.requests import Request

from noria.client import AsyncClient, ClientError, Unreachable
from noria.services.gateway.api.errors import HttpError, from_client
from noria.services.gateway.api.request_headers import bearer_token

ADMIN_CLASS: Final = "admin"
_IDENTIFY_S: Final = 2.0
_REMEMBERED_S: Final = 600.0
_REMEMBERED_MAX: Final = 64


class OperatorAccess:
    """Checks that a request carries an operator's API key."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._admitted_at: dict[bytes, float] = {}

    async def require_operator(self, request: Request) -> None:
        """Return if the request may pass. Raises HttpError 401 or 403, or 503 when admission does not answer."""
        credential = bearer_token(request.headers)
        name = hashlib.sha256(credential.encode("utf-8", "surrogatepass")).digest()
        try:
            known = await self._client.identify(credential, _IDENTIFY_S)
        except Unreachable as error:
            if time.monotonic() - self._admitted_at.get(name, -_REMEMBERED_S) >= _REMEMBERED_S:
                raise from_client(error) from error
            return
        except ClientError as error:
            self._admitted_at.pop(name, None)
            raise from_client(error) from error
        self._admitted_at.pop(name, None)
        if ADMIN_CLASS not in known.classes:
            raise HttpError(403, f"this needs an API key that may use the class {ADMIN_CLASS}", code="forbidden")
        self._admitted_at[name] = time.monotonic()
        if len(self._admitted_at) > _REMEMBERED_MAX:
            del self._admitted_at[next(iter(self._admitted_at))]
