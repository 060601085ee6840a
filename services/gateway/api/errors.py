"""Errors in the form of OpenAI's API, and the HTTP status of each refusal."""

import math
from typing import Final, assert_never

import msgspec
from starlette.responses import Response

from noria.client import ClientError, Closed, Finish, Interrupted, Malformed, Refused, Unreachable
from noria.proto.frontdoor import Code

_INVALID: Final = "invalid_request_error"
_SERVER: Final = "server_error"

# Fields that have another name in HTTP than on the wire.
_PARAMETERS: Final = {
    "id": "X-Request-Id",
    "include_stop": "include_stop_str_in_output",
    "token_ids": "prompt",
    "traffic_class": "service_tier",
    "credential": "Authorization",
}


class ErrorBody(msgspec.Struct, frozen=True):
    """The fields of OpenAI's error object."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorEnvelope(msgspec.Struct, frozen=True):
    """The body of an error response: OpenAI's error object under `error`."""

    error: ErrorBody


class HttpError(Exception):
    """Ends a request with a status and an error body; `retry_after_ms` becomes Retry-After."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = _INVALID,
        param: str | None = None,
        code: str | None = None,
        retry_after_ms: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = ErrorBody(message, kind, param, code)
        self.retry_after_ms = retry_after_ms

    def encode(self) -> bytes:
        """The JSON of the error object."""
        return msgspec.json.encode(ErrorEnvelope(self.body))

    def response(self) -> Response:
        """The HTTP response, with its Retry-After and authentication headers."""
        headers = {}
        if self.retry_after_ms is not None:
            headers["retry-after"] = str(max(1, math.ceil(self.retry_after_ms / 1000)))
            headers["retry-after-ms"] = str(self.retry_after_ms)  # which OpenAI's clients prefer
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        if self.status in (408, 413):  # the rest of the body is not wanted
            headers["connection"] = "close"
        return Response(self.encode(), self.status, headers, "application/json")


def invalid(message: str, param: str | None = None, code: str | None = None) -> HttpError:
    """Make an HttpError 400 for a mistake in the request."""
    return HttpError(400, message, param=param, code=code)


def from_client(error: ClientError) -> HttpError:
    """Convert an error of the client library to an HttpError."""
    match error:
        case Refused():
            return _refused(error)
        case Unreachable():
            return HttpError(503, str(error), kind=_SERVER, code="unreachable", retry_after_ms=1000)
        case Closed():
            return HttpError(
                503, "the server is shutting down; try again", kind=_SERVER, code="interrupted", retry_after_ms=1000
            )
        case Interrupted():
            return HttpError(503, str(error), kind=_SERVER, code="interrupted", retry_after_ms=1000)
        case Malformed():
            return HttpError(500, str(error), kind=_SERVER, code="malformed")
        case _:
            return HttpError(500, str(error), kind=_SERVER)


def from_finish(finish: Finish) -> HttpError | None:
    """Convert the end of a choice to an HttpError; None for `stop` and `length`, which are no errors."""
    match finish.reason:
        case "stop" | "length":
            return None
        case "deadline":
            message = finish.detail or "the request's time ran out before it was finished"
            return HttpError(504, message, kind="timeout_error", code="deadline")
        case "shed":
            message = finish.detail or "the request was dropped because of overload"
            return HttpError(503, message, kind=_SERVER, code="shed", retry_after_ms=1000)
        case "cancelled":
            message = finish.detail or "the request was cancelled"
            return HttpError(503, message, kind=_SERVER, code="cancelled", retry_after_ms=1000)
        case _:
            return HttpError(500, finish.detail or "the request failed", kind=_SERVER, code="error")


def _refused(error: Refused) -> HttpError:
    param = _PARAMETERS.get(error.parameter, error.parameter) or None
    retry_ms = error.retry_after_ms if error.retry_after_ms is not None else 1000
    reason = error.reason
    match error.code:
        case Code.INVALID | Code.UNSUPPORTED:
            return HttpError(400, reason, param=param, code=error.code.value)
        case Code.CONTEXT_LENGTH:
            return HttpError(400, reason, param=param, code="context_length_exceeded")
        case Code.MODEL_NOT_FOUND:
            return HttpError(404, reason, param=param or "model", code=error.code.value)
        case Code.NOT_FOUND:
            return HttpError(404, reason, param=param, code=error.code.value)
        case Code.CONFLICT:
            return HttpError(409, reason, param=param, code=error.code.value)
        case Code.UNAUTHORIZED:
            return HttpError(401, reason, param=param, code="invalid_api_key")
        case Code.QUOTA:
            return HttpError(429, reason, kind="rate_limit_error", param=param, code="quota", retry_after_ms=retry_ms)
        case Code.OVERLOADED | Code.NOT_READY:
            return HttpError(503, reason, kind=_SERVER, param=param, code=error.code.value, retry_after_ms=retry_ms)
        case Code.DEADLINE:
            return HttpError(
                504, reason, kind="timeout_error", param=param, code="deadline", retry_after_ms=error.retry_after_ms
            )
        case Code.INTERNAL:
            return HttpError(500, reason, kind=_SERVER, param=param, code="internal")
        case _:
            assert_never(error.code)
