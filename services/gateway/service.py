"""The gateway's shell: HTTP runs in a second thread, the mailbox for supervisor and inspectors in the main thread."""

import asyncio
import logging
import threading
from typing import Any, Final

import msgspec
import uvicorn
import uvloop

from noria.client import AsyncClient
from noria.proto.base import Header, Service
from noria.proto.lifecycle import State
from noria.services.gateway.api.generation_endpoints import OpenRequests
from noria.services.gateway.app import build
from noria.services.gateway.config import GatewayConfig
from noria.services.gateway.http_protocol import BoundedHttpProtocol
from noria.shared.actor.actor import Actor
from noria.shared.actor.endpoints import runtime_dir
from noria.shared.process.listener import ListenerHandover, listen
from noria.shared.telemetry.log import logger
from noria.shared.telemetry.telemetry import Telemetry

_KEEP_ALIVE_S: Final = 30
_LAST_WORDS_S: Final = 1


class GatewayService:
    """Serves HTTP from construction to `close`; raises UserError when the address cannot be had."""

    def __init__(self, actor: Actor, config: GatewayConfig, telemetry: Telemetry) -> None:
        self._actor = actor
        self._config = config
        self._telemetry = telemetry
        self._traffic = OpenRequests()
        self._listener = listen(config.host, config.port)
        self._offer = ListenerHandover(self._listener, runtime_dir(config.runtime))
        if self._offer.available:
            actor.watch(self._offer.socket.fileno(), self._offer.answer)
        self._server: uvicorn.Server | None = None
        self._draining = False
        self._leaving = False
        self._failure: BaseException | None = None
        actor.leave_within(config.drain_timeout_s + config.runtime.stop_timeout_s)
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port in use, also if the configuration says 0."""
        return int(self._listener.getsockname()[1])

    def receive(self, sender: Service, header: Header, body: msgspec.Struct) -> None:
        """Do nothing: peers send the gateway only lifecycle messages."""

    def joined(self, peer: Service) -> None:
        """Do nothing: a peer needs nothing from the gateway when it joins."""

    def lost(self, peer: Service) -> None:
        """Do nothing: HTTP goes on without the supervisor."""

    def congested(self, peer: Service) -> None:
        """Do nothing: the gateway queues no messages for peers."""

    def advance(self, now_ns: int) -> int | None:
        """Do nothing: all work happens in the HTTP thread."""
        del now_ns
        return None

    def state(self) -> State:
        """The gateway's state: READY once HTTP listens, DRAINING after a drain."""
        if self._draining:
            return State.DRAINING
        return State.READY if self._server is not None and self._server.started else State.STARTING

    def progress(self) -> tuple[int, bool]:
        """Requests answered so far, and whether some are open."""
        return self._traffic.served, self._traffic.open > 0

    def snapshot(self) -> dict[str, Any]:
        """The gateway's part of /debug/state: URL, open responses, and responses so far."""
        return {"http": self._config.url, "open_responses": self._traffic.open, "served": self._traffic.served}

    def drain(self, timeout_ms: int) -> None:
        """Say that this gateway is not ready any more. New requests are refused by admission, which drains too."""
        del timeout_ms  # open responses end as their requests do
        self._draining = self._traffic.draining = True

    def close(self) -> None:
        """Take no more connections, let open responses finish, and pass the HTTP thread's failure on.

        After a drain they have had their time. Without one, somebody else may take this gateway's place meanwhile.
        """
        self._leaving = self._traffic.leaving = True
        if self._server is not None:
            if self._draining:
                self._server.config.timeout_graceful_shutdown = _LAST_WORDS_S
            self._server.should_exit = True
        self._actor.leave()
        self._thread.join()
        self._offer.close()
        self._listener.close()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve())
        except BaseException as error:  # the edge of the thread: `close` raises it in the main one
            self._failure = error
        if not self._leaving:
            self._actor.stop()

    async def _serve(self) -> None:
        config = self._config
        async with AsyncClient(
            config.admission, message_bytes_max=config.message_bytes_max, curve=config.curve
        ) as client:
            app = build(client, self._config, self._telemetry, self._traffic)
            settings = uvicorn.Config(
                app,
                loop="none",
                http=BoundedHttpProtocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                limit_concurrency=self._config.connections_max,
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=max(1, round(self._config.drain_timeout_s)),
            )
            logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # else a line for each request that is none
            self._server = uvicorn.Server(settings)
            if self._leaving:
                return
            logger(Service.GATEWAY.value).info("http listens", url=self._config.url)
            await self._server.serve(sockets=[self._listener])
