"""Background requests over HTTP: accepted with an id at once, then polled, streamed or cancelled by that id.

    POST   /v1/chat/completions, /v1/completions   with X-Noria-Background: true or "background": true
    GET    /v1/requests/{id}                       its status, and the answer once it is complete
    GET    /v1/requests/{id}?stream=true           the answer as it comes; Last-Event-ID continues a broken stream
    DELETE /v1/requests/{id}                       cancel; also POST /v1/requests/{id}/cancel

Admission keeps the requests; the gateway keeps nothing. A request can be read only with the API key that made it.
"""

import time
from collections.abc import Sequence
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from noria.client import AsyncClient, ClientError, Code, Completion, Refused, Standing
from noria.proto.base import End
from noria.services.gateway.api import event_stream
from noria.services.gateway.api.answer_feeds import AnswerFeeds
from noria.services.gateway.api.answering import Disconnected, EventStream, RequestOutcome, answer_body, while_connected
from noria.services.gateway.api.errors import HttpError, from_client, from_finish
from noria.services.gateway.api.generation_request import GenerationRequest
from noria.services.gateway.api.request_headers import bearer_token, scoped_name
from noria.services.gateway.api.response_bodies import (
    AnswerBody,
    ChatFormat,
    CompletionFormat,
    FailureBody,
    ResponseFormat,
    ResponseSpec,
    encode,
    usage_body,
)

REQUEST_PATH: Final = "/v1/requests/{name}"
_FORMATS: Final[dict[str, ResponseFormat]] = {
    response_format.prefix: response_format for response_format in (ChatFormat(), CompletionFormat())
}
_TRUE: Final = ("true", "1")


class BackgroundEndpoint:
    """The endpoint /v1/requests/{id}, and the response to a newly accepted background request."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._feeds = AnswerFeeds(client)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Return the status or answer of a background request, stream it, or cancel it."""
        request = Request(scope, receive)
        name, credential = str(request.path_params["name"]), bearer_token(request.headers)
        response_format = _FORMATS.get(name.partition("-")[0])
        if response_format is None:
            raise _not_found(name)
        wire_name = scoped_name(name, credential)
        standing = await self._standing(name, wire_name, credential)
        reads = request.method in ("GET", "HEAD")
        if not reads:
            if not self._client.cancel(wire_name, credential):
                raise HttpError(503, "admission cannot be reached; try again", kind="server_error", retry_after_ms=1000)
            standing = await self._standing(name, wire_name, credential)
        spec = ResponseSpec(
            response_format,
            name,
            name,
            int(time.time() - standing.age_ms / 1000),
            len(standing.ends),
            standing.stop,
            request.query_params.get("include_usage", "") in _TRUE,
        )
        if reads and request.query_params.get("stream", "") in _TRUE:
            positions = event_stream.parse_positions(
                request.headers.get(event_stream.LAST_EVENT_HEADER, ""), spec.choices
            )
            reader = self._feeds.read(wire_name, spec.choices, credential)
            try:
                stream = EventStream(spec, [reader], standing.model, positions, RequestOutcome())
                await while_connected(receive, stream.run(send))
            except (Disconnected, OSError):
                pass
            finally:
                reader.leave()
            return
        response = Response(encode(await self._body(spec, standing, wire_name, credential)), 200, media_type=_JSON_TYPE)
        await response(scope, receive, send)

    async def accepted_response(self, generation_request: GenerationRequest) -> Response:
        """The 202 response to an accepted background request, with its Location."""
        (name,) = generation_request.wire_names
        standing = await self._standing(generation_request.response_id, name, generation_request.caller.credential)
        headers = {
            "x-request-id": generation_request.request_id,
            "location": REQUEST_PATH.format(name=generation_request.response_id),
        }
        return Response(encode(_unfinished_body(generation_request.response_spec, standing)), 202, headers, _JSON_TYPE)

    async def _standing(self, name: str, wire_name: str, credential: str) -> Standing:
        try:
            standing = await self._client.standing(wire_name, credential)
        except Refused as error:
            raise _not_found(name) if error.code is Code.NOT_FOUND else from_client(error) from error
        except ClientError as error:
            raise from_client(error) from error
        if not standing.background:
            raise _not_found(name)
        return standing

    async def _body(self, spec: ResponseSpec, standing: Standing, name: str, credential: str) -> AnswerBody:
        if not all(standing.ends):
            return _unfinished_body(spec, standing)
        reader = self._feeds.read(name, spec.choices, credential)
        try:
            completion = await reader.result()
        except ClientError as error:
            raise from_client(error) from error
        finally:
            reader.leave()
        return _finished_body(spec, standing, completion)


_JSON_TYPE: Final = "application/json"


def _status(ends: Sequence[int], output_tokens: Sequence[int]) -> str:
    if not all(ends):
        return "in_progress" if any(output_tokens) or any(ends) else "queued"
    if all(end in (End.STOP, End.LENGTH) for end in ends):
        return "completed"
    return "cancelled" if End.CANCELLED in ends else "failed"


def _unfinished_body(spec: ResponseSpec, standing: Standing) -> AnswerBody:
    """The body of a request that has not ended: status and usage without choices."""
    return AnswerBody(
        spec.response_id,
        spec.response_format.full_object,
        spec.created,
        standing.model,
        (),
        usage_body(standing.prompt_tokens, sum(standing.output_tokens), 0),
        _status(standing.ends, standing.output_tokens),
        None,
    )


def _finished_body(spec: ResponseSpec, standing: Standing, completion: Completion) -> AnswerBody:
    failures = [failure for choice in completion.choices if (failure := from_finish(choice.finish)) is not None]
    body = answer_body(spec, [completion], RequestOutcome())
    error = FailureBody(failures[0].body.code or "error", failures[0].body.message) if failures else None
    return AnswerBody(
        body.id,
        body.object,
        body.created,
        body.model,
        body.choices,
        body.usage,
        _status(standing.ends, standing.output_tokens),
        error,
    )


def _not_found(name: str) -> HttpError:
    reason = (
        f"there is no background request {name[:128]!r} of this API key: "
        "it was never accepted, or it ended and the retention time is over"
    )
    return HttpError(404, reason, param="id", code="not_found")
