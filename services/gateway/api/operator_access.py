"""Who may look inside: only keys that may use the class of operators, and everybody where no tenants are configured.

Admission says so. While it does not answer, those whom it let in lately are still let in: that is when they are needed.
"""

import hashlib
import time
from typing import Final

from starlette.requests import Request

from noria.client import AsyncClient, ClientError, Unreachable
from noria.services.gateway.api.errors import HttpError, from_client
from noria.services.gateway.api.request_headers import bearer

ADMIN: Final = "admin"
_IDENTIFY_S: Final = 2.0
_REMEMBERED_S: Final = 600.0
_REMEMBERED_MAX: Final = 64


class Operators:
    """Lets operators in."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._let_in: dict[bytes, float] = {}

    async def admit(self, request: Request) -> None:
        """Let a request pass. Raises HttpError 401 and 403, and 503 when nobody can say."""
        credential = bearer(request.headers)
        name = hashlib.sha256(credential.encode("utf-8", "surrogatepass")).digest()
        try:
            known = await self._client.identify(credential, _IDENTIFY_S)
        except Unreachable as error:
            if time.monotonic() - self._let_in.get(name, -_REMEMBERED_S) >= _REMEMBERED_S:
                raise from_client(error) from error
            return
        except ClientError as error:
            self._let_in.pop(name, None)
            raise from_client(error) from error
        self._let_in.pop(name, None)
        if ADMIN not in known.classes:
            raise HttpError(403, f"this needs an API key that may use the class {ADMIN}", code="forbidden")
        self._let_in[name] = time.monotonic()
        if len(self._let_in) > _REMEMBERED_MAX:
            del self._let_in[next(iter(self._let_in))]
