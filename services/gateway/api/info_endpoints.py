"""The endpoints that generate nothing: index, health, readiness, models, debug state, why and preview."""

import asyncio
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from noria.client import AsyncClient, ClientError, Code, Description, Refused
from noria.proto.base import Service
from noria.services.gateway.api.background import REQUEST_PATH
from noria.services.gateway.api.errors import HttpError, from_client
from noria.services.gateway.api.generation_endpoints import (
    GENERATION_PATHS,
    OpenRequests,
    parse_chat_request,
    parse_completion_request,
)
from noria.services.gateway.api.operator_access import OperatorAccess
from noria.services.gateway.api.request_bodies import read_body
from noria.services.gateway.api.response_bodies import preview_body
from noria.services.gateway.config import GatewayConfig
from noria.shared.actor.inspect import explain_request, inspect_all_async

_DESCRIBE_TIMEOUT_S: Final = 2.0
_INSPECT_TIMEOUT_S: Final = 1.0


class InfoEndpoints:
    """Handlers of index, health, readiness, models, debug state, why and preview."""

    def __init__(
        self, client: AsyncClient, config: GatewayConfig, operator_access: OperatorAccess, traffic: OpenRequests
    ) -> None:
        self._client = client
        self._config = config
        self._operator_access = operator_access
        self._traffic = traffic

    async def index(self, request: Request) -> Response:
        """List all URLs."""
        del request
        paths = [route.path for route in self.routes() if route.path != "/"]
        return _json(
            {"noria": "a continuous-batching LLM inference server", "urls": [*GENERATION_PATHS, REQUEST_PATH, *paths]}
        )

    async def health(self, request: Request) -> Response:
        """Return 200 while gateway and admission answer, else 503."""
        del request
        if await self._describe() is None:
            return _json({"status": "unavailable", "missing": [Service.ADMISSION.value]}, 503)
        return _json({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """Return 200 when every service is ready, else 503 with the missing ones."""
        del request
        description = await self._describe()
        waiting_for = (Service.ADMISSION.value,) if description is None else description.waiting_for
        if self._traffic.draining:
            waiting_for = (Service.GATEWAY.value,)
        return _json({"ready": not waiting_for, "waiting_for": waiting_for}, 503 if waiting_for else 200)

    async def models(self, request: Request) -> Response:
        """List the served models."""
        del request
        description = await self._model_description()
        return _json({"object": "list", "data": [_model(name, description) for name in description.models]})

    async def model(self, request: Request) -> Response:
        """Describe one served model. Raises HttpError 404."""
        name = str(request.path_params["name"])
        description = await self._model_description()
        if name not in description.models:
            served = ", ".join(description.models)
            raise HttpError(404, f"there is no model {name!r}; served: {served}", param="model", code="model_not_found")
        return _json(_model(name, description))

    async def state(self, request: Request) -> Response:
        """Return every process's snapshot, null for those that do not answer. Needs an operator's key if tenants exist."""
        await self._operator_access.require_operator(request)
        snapshots = await inspect_all_async(self._config.runtime, timeout_s=_INSPECT_TIMEOUT_S)
        state: dict[str, object] = {}
        for service in Service:
            snapshot = snapshots.get(service)
            state[service.value] = snapshot and {
                "pid": snapshot.pid,
                "state": snapshot.state,
                **msgspec.json.decode(snapshot.json),
            }
        return _json(state)

    async def why(self, request: Request) -> Response:
        """Return in words what a request waited for, by its id or number. Needs an operator's key if tenants exist."""
        await self._operator_access.require_operator(request)
        name = str(request.path_params["name"])
        lines = await asyncio.to_thread(explain_request, self._config.runtime, name, _INSPECT_TIMEOUT_S)
        if not lines:
            raise HttpError(404, f"nothing is known of request {name!r}", code="not_found")
        return _json({"request": name, "why": lines})

    async def preview(self, request: Request) -> Response:
        """Forecast whether and when a chat or completion request would run now."""
        data = await read_body(request, self._config.body_bytes_max, self._config.body_timeout_s)
        parse = parse_chat_request if _is_chat(data) else parse_completion_request
        generation_request = parse(data, request.headers)
        try:
            forecast = await generation_request.preview(self._client)
        except ClientError as error:
            raise from_client(error) from error
        if forecast.code is Code.UNAUTHORIZED:
            raise from_client(Refused(forecast.code, forecast.reason, forecast.parameter))
        return _json(preview_body(forecast))

    def routes(self) -> list[Route]:
        """The routes of all these endpoints."""
        return [
            Route("/v1/preview", self.preview, methods=["POST"]),
            Route("/", self.index),
            Route("/v1/models", self.models),
            Route("/v1/models/{name:path}", self.model),
            Route("/health", self.health),
            Route("/ready", self.ready),
            Route("/health/ready", self.ready),
            Route("/debug/state", self.state),
            Route("/debug/why/{name:path}", self.why),
        ]

    async def _describe(self) -> Description | None:
        try:
            return await self._client.describe(_DESCRIBE_TIMEOUT_S)
        except ClientError:
            return None

    async def _model_description(self) -> Description:
        try:
            return await self._client.describe(_DESCRIBE_TIMEOUT_S)
        except ClientError as error:
            raise from_client(error) from error


class _ChatFields(msgspec.Struct):
    messages: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


def _is_chat(data: bytes) -> bool:
    """Whether a body is a chat request; False for unreadable ones, which the parser refuses later."""
    try:
        return msgspec.json.decode(data, type=_ChatFields).messages is not msgspec.UNSET
    except (msgspec.DecodeError, RecursionError):
        return False


def _model(name: str, description: Description) -> dict[str, object]:
    return {
        "id": name,
        "object": "model",
        "created": description.started_unix_s,
        "owned_by": "noria",
        "max_model_len": description.max_model_tokens,
    }


def _json(content: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(content), status, media_type="application/json")
