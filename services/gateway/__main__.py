"""Run the gateway alone."""

from noria.proto.base import Service
from noria.services.gateway.config import gateway_config
from noria.services.gateway.service import GatewayService
from noria.shared.config.config import Config
from noria.shared.process.service_process import main, run


def start(config: Config) -> int:
    """Serve HTTP until SIGTERM."""
    gateway = gateway_config(config)
    return run(Service.GATEWAY, config, (), lambda actor, telemetry: GatewayService(actor, gateway, telemetry))


if __name__ == "__main__":
    main(Service.GATEWAY, start)
