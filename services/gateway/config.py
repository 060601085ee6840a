"""The gateway's part of the configuration."""

import msgspec

from noria.proto.base import Service
from noria.shared.actor.curve import PUBLIC, Curve, configured_curve_keys
from noria.shared.actor.endpoints import public_mailbox, split_address
from noria.shared.config.config import Config, RuntimeSettings


class GatewayConfig(msgspec.Struct, frozen=True):
    """The gateway's address, limits and timeouts.

    grace_ms: how long requests go on after their gateway died. admission: address of admission's public mailbox.
    """

    host: str
    port: int
    body_bytes_max: int
    body_timeout_s: float
    connections_max: int
    message_bytes_max: int
    drain_timeout_s: float
    grace_ms: int
    admission: str
    curve: Curve | None
    runtime: RuntimeSettings

    @property
    def url(self) -> str:
        """The base URL, as shown to people."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


def gateway_config(config: Config) -> GatewayConfig:
    """Build the gateway's configuration. Raises UserError when the address is not HOST:PORT or keys are missing."""
    host, port = split_address(config.http.address)
    return GatewayConfig(
        host=host,
        port=port,
        body_bytes_max=config.http.body_bytes_max,
        body_timeout_s=config.http.body_timeout_s,
        connections_max=config.http.connections_max,
        message_bytes_max=config.limits.message_bytes_max,
        drain_timeout_s=config.http.drain_timeout_s,
        grace_ms=round(config.gateway_grace_s * 1000),
        admission=public_mailbox(config.runtime),
        curve=keys.curve_to(PUBLIC, Service.GATEWAY.value)
        if (keys := configured_curve_keys(config.runtime)) is not None
        else None,
        runtime=config.runtime,
    )
