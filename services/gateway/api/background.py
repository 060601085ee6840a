"""Requests in the background over HTTP: answered at once with an id, asked for and cancelled by it later.

    POST   /v1/chat/completions, /v1/completions   with X-Noria-Background: true or "background": true
    GET    /v1/requests/{id}                       how it stands, and the answer once it is whole
    GET    /v1/requests/{id}?stream=true           the answer as it comes; Last-Event-ID continues a broken stream
    DELETE /v1/requests/{id}                       cancel; also POST /v1/requests/{id}/cancel

Admission keeps the requests; nothing of them is kept here. A request is found by the API key that made it alone.
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
from noria.services.gateway.api.answer_feeds import Feeds
from noria.services.gateway.api.answering import Disconnected, EventStream, Outcome, answer, while_connected
from noria.services.gateway.api.errors import HttpError, from_client, from_finish
from noria.services.gateway.api.generation_request import Work
from noria.services.gateway.api.request_headers import bearer, marked
from noria.services.gateway.api.response_bodies import (
    AnswerBody,
    ChatShape,
    Failure,
    Form,
    Shape,
    TextShape,
    encode,
    usage_body,
)

PATH: Final = "/v1/requests/{name}"
_SHAPES: Final[dict[str, Shape]] = {shape.prefix: shape for shape in (ChatShape(), TextShape())}
_YES: Final = ("true", "1")


class Background:
    """The endpoint of one request, and what its acceptance is answered with."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._feeds = Feeds(client)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request about a request."""
        request = Request(scope, receive)
        name, credential = str(request.path_params["name"]), bearer(request.headers)
        shape = _SHAPES.get(name.partition("-")[0])
        if shape is None:
            raise _unknown(name)
        wire_name = marked(name, credential)
        standing = await self._standing(name, wire_name, credential)
        asks = request.method in ("GET", "HEAD")
        if not asks:
            if not self._client.cancel(wire_name, credential):
                raise HttpError(503, "admission cannot be reached; try again", kind="server_error", retry_after_ms=1000)
            standing = await self._standing(name, wire_name, credential)
        form = Form(
            shape,
            name,
            name,
            int(time.time() - standing.age_ms / 1000),
            len(standing.ends),
            standing.stop,
            request.query_params.get("include_usage", "") in _YES,
        )
        if asks and request.query_params.get("stream", "") in _YES:
            have = event_stream.read(request.headers.get(event_stream.HEADER, ""), form.choices)
            reading = self._feeds.read(wire_name, form.choices, credential)
            try:
                stream = EventStream(form, [reading], standing.model, have, Outcome())
                await while_connected(receive, stream.run(send))
            except (Disconnected, OSError):
                pass
            finally:
                reading.leave()
            return
        response = Response(encode(await self._body(form, standing, wire_name, credential)), 200, media_type=_JSON)
        await response(scope, receive, send)

    async def accepted(self, work: Work) -> Response:
        """Answer that a request was accepted and where it can be asked for."""
        (name,) = work.names
        standing = await self._standing(work.response_id, name, work.caller.credential)
        headers = {"x-request-id": work.request_id, "location": PATH.format(name=work.response_id)}
        return Response(encode(_standing_body(work.form, standing)), 202, headers, _JSON)

    async def _standing(self, name: str, wire_name: str, credential: str) -> Standing:
        try:
            standing = await self._client.standing(wire_name, credential)
        except Refused as error:
            raise _unknown(name) if error.code is Code.NOT_FOUND else from_client(error) from error
        except ClientError as error:
            raise from_client(error) from error
        if not standing.background:
            raise _unknown(name)
        return standing

    async def _body(self, form: Form, standing: Standing, name: str, credential: str) -> AnswerBody:
        if not all(standing.ends):
            return _standing_body(form, standing)
        reading = self._feeds.read(name, form.choices, credential)
        try:
            completion = await reading.result()
        except ClientError as error:
            raise from_client(error) from error
        finally:
            reading.leave()
        return _whole_body(form, standing, completion)


_JSON: Final = "application/json"


def _status(ends: Sequence[int], output_tokens: Sequence[int]) -> str:
    if not all(ends):
        return "in_progress" if any(output_tokens) or any(ends) else "queued"
    if all(end in (End.STOP, End.LENGTH) for end in ends):
        return "completed"
    return "cancelled" if End.CANCELLED in ends else "failed"


def _standing_body(form: Form, standing: Standing) -> AnswerBody:
    """An answer without its choices."""
    return AnswerBody(
        form.response_id,
        form.shape.whole_object,
        form.created,
        standing.model,
        (),
        usage_body(standing.prompt_tokens, sum(standing.output_tokens), 0),
        _status(standing.ends, standing.output_tokens),
        None,
    )


def _whole_body(form: Form, standing: Standing, completion: Completion) -> AnswerBody:
    failures = [failure for choice in completion.choices if (failure := from_finish(choice.finish)) is not None]
    body = answer(form, [completion], Outcome())
    error = Failure(failures[0].body.code or "error", failures[0].body.message) if failures else None
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


def _unknown(name: str) -> HttpError:
    reason = (
        f"there is no background request {name[:128]!r} of this API key: "
        "it was never accepted, or it ended and the retention time is over"
    )
    return HttpError(404, reason, param="id", code="not_found")
