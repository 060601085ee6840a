"""The endpoints /metrics and /metrics/{service}: the metrics of all processes or of one, collected at each scrape."""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from noria.client import AsyncClient, ClientError
from noria.proto.base import Service
from noria.proto.lifecycle import Snapshot, State
from noria.services.gateway.api.errors import HttpError
from noria.services.gateway.api.operator_access import OperatorAccess
from noria.services.gateway.config import GatewayConfig
from noria.services.gateway.monitoring.exposition import CONTENT_TYPE, render_metrics
from noria.shared.actor.inspect import inspect_all_async
from noria.shared.telemetry import instruments
from noria.shared.telemetry.metrics import MetricValue, decode_values, merge_values
from noria.shared.telemetry.spans import ATTRIBUTE_SERVICE

_INSPECT_TIMEOUT_S: Final = 1.0
_DESCRIBE_TIMEOUT_S: Final = 1.0


_WITHOUT_SUPERVISOR: Final = tuple(each for each in Service if each is not Service.SUPERVISOR)


class MetricsEndpoints:
    """Handlers for Prometheus' scrapes. They need an operator's key if tenants are configured."""

    def __init__(self, client: AsyncClient, config: GatewayConfig, operator_access: OperatorAccess) -> None:
        self._client = client
        self._config = config
        self._operator_access = operator_access
        self._model = ""

    async def all(self, request: Request) -> Response:
        """Return the metrics of every process that answers, with vLLM's names for them."""
        await self._operator_access.require_operator(request)
        return await self._render(tuple(Service) if self._config.runtime.supervised else _WITHOUT_SUPERVISOR)

    async def one(self, request: Request) -> Response:
        """Return the metrics of one process. Raises HttpError 404 for an unknown service."""
        await self._operator_access.require_operator(request)
        name = str(request.path_params["service"])
        if name not in {each.value for each in Service}:
            raise HttpError(404, f"there is no service {name!r}; known: {', '.join(Service)}", code="not_found")
        return await self._render((Service(name),))

    def routes(self) -> list[Route]:
        """The routes of these endpoints."""
        return [Route("/metrics", self.all), Route("/metrics/{service}", self.one)]

    async def _render(self, services: tuple[Service, ...]) -> Response:
        answers = await inspect_all_async(self._config.runtime, services, _INSPECT_TIMEOUT_S, "metrics")
        if not answers:
            raise HttpError(503, "no service answers", kind="server_error", code="unavailable")
        values = merge_values(value for answer in answers.values() for value in decode_values(answer.json))
        if services == _WITHOUT_SUPERVISOR:  # else the supervisor reports which services are up
            values += [_service_up(each, answers.get(each)) for each in services]
        return Response(render_metrics(values, await self._model_name()), media_type=CONTENT_TYPE)

    async def _model_name(self) -> str:
        """The served model's name; the last known one while admission does not answer, or empty."""
        if not self._model:
            try:
                self._model = (await self._client.describe(_DESCRIBE_TIMEOUT_S)).models[0]
            except ClientError:
                return ""
        return self._model


def _service_up(service: Service, answer: Snapshot | None) -> MetricValue:
    ready = answer is not None and answer.state is State.READY
    return MetricValue(instruments.SERVICE_UP, int(ready), ((ATTRIBUTE_SERVICE, service.value),))
