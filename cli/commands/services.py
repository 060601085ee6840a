"""`noria gateway`, `noria admission` and so on: run one service alone in the foreground, as Docker Compose does."""

import click

from noria.cli.config_handover import exec_module
from noria.cli.flags import config_flags, settings_to_run
from noria.proto.base import Service

_ABOUT = {
    Service.GATEWAY: "Run the gateway (HTTP) alone.",
    Service.ADMISSION: "Run admission alone.",
    Service.SCHEDULER: "Run the scheduler alone.",
    Service.EXECUTOR: "Run the executor alone.",
    Service.DETOKENIZER: "Run the detokenizer alone.",
}


def service_commands() -> list[click.Command]:
    """Return one command for each service that a container may run."""
    return [_command(service, about) for service, about in _ABOUT.items()]


def _command(service: Service, about: str) -> click.Command:
    @click.command(name=service.value, help=about)
    @config_flags()
    def command() -> None:
        exec_module(f"noria.services.{service.value}", settings_to_run())

    return command
