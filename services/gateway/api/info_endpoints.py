"""The small endpoints: health, models, state, why, preview."""

import asyncio
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from noria.client import AsyncClient, ClientError, Code, Description, Refused
from noria.proto.base import Service
from noria.services.gateway.api.background import PATH
from noria.services.gateway.api.errors import HttpError, from_client
from noria.services.gateway.api.generation_endpoints import (
    GENERATION_PATHS,
    Traffic,
    understand_chat,
    understand_completion,
)
from noria.services.gateway.api.operator_access import Operators
from noria.services.gateway.api.request_bodies import read_body
from noria.services.gateway.api.response_bodies import preview_body
from noria.services.gateway.config import GatewayConfig
from noria.shared.actor.inspect import explain, inspect_all_async

_DESCRIBE_S: Final = 2.0
_INSPECT_S: Final = 1.0


class Pages:
    """The small endpoints."""

    def __init__(self, client: AsyncClient, config: GatewayConfig, operators: Operators, traffic: Traffic) -> None:
        self._client = client
        self._config = config
        self._operators = operators
        self._traffic = traffic

    async def index(self, request: Request) -> Response:
        """What there is."""
        del request
        paths = [route.path for route in self.routes() if route.path != "/"]
        return _json({"noria": "a continuous-batching LLM inference server", "urls": [*GENERATION_PATHS, PATH, *paths]})

    async def health(self, request: Request) -> Response:
        """200 while gateway and admission answer."""
        del request
        if await self._describe() is None:
            return _json({"status": "unavailable", "missing": [Service.ADMISSION.value]}, 503)
        return _json({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """200 when everything is there, else what is waited for."""
        del request
        description = await self._describe()
        waiting_for = (Service.ADMISSION.value,) if description is None else description.waiting_for
        if self._traffic.draining:
            waiting_for = (Service.GATEWAY.value,)
        return _json({"ready": not waiting_for, "waiting_for": waiting_for}, 503 if waiting_for else 200)

    async def models(self, request: Request) -> Response:
        """The names served."""
        del request
        description = await self._served()
        return _json({"object": "list", "data": [_model(name, description) for name in description.models]})

    async def model(self, request: Request) -> Response:
        """One of them."""
        name = str(request.path_params["name"])
        description = await self._served()
        if name not in description.models:
            served = ", ".join(description.models)
            raise HttpError(404, f"there is no model {name!r}; served: {served}", param="model", code="model_not_found")
        return _json(_model(name, description))

    async def state(self, request: Request) -> Response:
        """What every process holds; null for those that do not answer. For operators only, where there are tenants."""
        await self._operators.admit(request)
        found = await inspect_all_async(self._config.runtime, timeout_s=_INSPECT_S)
        state: dict[str, object] = {}
        for service in Service:
            snapshot = found.get(service)
            state[service.value] = snapshot and {
                "pid": snapshot.pid,
                "state": snapshot.state,
                **msgspec.json.decode(snapshot.json),
            }
        return _json(state)

    async def why(self, request: Request) -> Response:
        """What a request waited for, in plain words, by its id or number. For operators only, where there are tenants."""
        await self._operators.admit(request)
        name = str(request.path_params["name"])
        lines = await asyncio.to_thread(explain, self._config.runtime, name, _INSPECT_S)
        if not lines:
            raise HttpError(404, f"nothing is known of request {name!r}", code="not_found")
        return _json({"request": name, "why": lines})

    async def preview(self, request: Request) -> Response:
        """What would become of a chat or completion request now."""
        data = await read_body(request, self._config.body_bytes_max, self._config.body_timeout_s)
        understand = understand_chat if _is_chat(data) else understand_completion
        work = understand(data, request.headers)
        try:
            forecast = await work.preview(self._client)
        except ClientError as error:
            raise from_client(error) from error
        if forecast.code is Code.UNAUTHORIZED:
            raise from_client(Refused(forecast.code, forecast.reason, forecast.parameter))
        return _json(preview_body(forecast))

    def routes(self) -> list[Route]:
        """All of them."""
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
            return await self._client.describe(_DESCRIBE_S)
        except ClientError:
            return None

    async def _served(self) -> Description:
        try:
            return await self._client.describe(_DESCRIBE_S)
        except ClientError as error:
            raise from_client(error) from error


class _Shape(msgspec.Struct):
    messages: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


def _is_chat(data: bytes) -> bool:
    """Whether a body is a chat's; what cannot be read is refused later, by name."""
    try:
        return msgspec.json.decode(data, type=_Shape).messages is not msgspec.UNSET
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
