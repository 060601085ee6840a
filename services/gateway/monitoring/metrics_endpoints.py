"""`/metrics`: what the metrics of all processes stand at, asked of their mailboxes at each scrape, or of one of them."""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from noria.client import AsyncClient, ClientError
from noria.proto.base import Service
from noria.proto.lifecycle import Snapshot, State
from noria.services.gateway.api.errors import HttpError
from noria.services.gateway.api.operator_access import Operators
from noria.services.gateway.config import GatewayConfig
from noria.services.gateway.monitoring.exposition import CONTENT_TYPE, exposition
from noria.shared.actor.inspect import inspect_all_async
from noria.shared.telemetry import instruments
from noria.shared.telemetry.metrics import Value, merged, told
from noria.shared.telemetry.spans import ATTRIBUTE_SERVICE

_ANSWER_S: Final = 1.0
_DESCRIBE_S: Final = 1.0


_WITHOUT_SUPERVISOR: Final = tuple(each for each in Service if each is not Service.SUPERVISOR)


class Scraping:
    """The endpoints for Prometheus. For operators only, where there are tenants."""

    def __init__(self, client: AsyncClient, config: GatewayConfig, operators: Operators) -> None:
        self._client = client
        self._config = config
        self._operators = operators
        self._model = ""

    async def all(self, request: Request) -> Response:
        """The metrics of every process that answers, and vLLM's names for them."""
        await self._operators.admit(request)
        return await self._page(tuple(Service) if self._config.runtime.supervised else _WITHOUT_SUPERVISOR)

    async def one(self, request: Request) -> Response:
        """One process's own."""
        await self._operators.admit(request)
        name = str(request.path_params["service"])
        if name not in {each.value for each in Service}:
            raise HttpError(404, f"there is no service {name!r}; known: {', '.join(Service)}", code="not_found")
        return await self._page((Service(name),))

    def routes(self) -> list[Route]:
        """All of them."""
        return [Route("/metrics", self.all), Route("/metrics/{service}", self.one)]

    async def _page(self, services: tuple[Service, ...]) -> Response:
        answers = await inspect_all_async(self._config.runtime, services, _ANSWER_S, "metrics")
        if not answers:
            raise HttpError(503, "no service answers", kind="server_error", code="unavailable")
        values = merged(value for answer in answers.values() for value in told(answer.json))
        if services == _WITHOUT_SUPERVISOR:  # nobody else says who is there
            values += [_up(each, answers.get(each)) for each in services]
        return Response(exposition(values, await self._served()), media_type=CONTENT_TYPE)

    async def _served(self) -> str:
        """The model's name; as last heard where admission does not answer."""
        if not self._model:
            try:
                self._model = (await self._client.describe(_DESCRIBE_S)).models[0]
            except ClientError:
                return ""
        return self._model


def _up(service: Service, answer: Snapshot | None) -> Value:
    ready = answer is not None and answer.state is State.READY
    return Value(instruments.SERVICE_UP, int(ready), ((ATTRIBUTE_SERVICE, service.value),))
