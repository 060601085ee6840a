"""`noria ps`: lists the services with their states, asked of each service's mailbox."""

from collections.abc import Sequence

import click
import msgspec

from noria.cli.flags import config_flags, settings
from noria.proto.base import Service
from noria.proto.lifecycle import State
from noria.shared.config.config import RuntimeSettings

_COLUMNS = ("service", "pid", "incarnation", "state")


class ServiceRow(msgspec.Struct, frozen=True):
    """One service of the list; pid 0 and an empty incarnation when it is absent. state `silent`: it runs but does not answer."""

    service: str
    pid: int
    incarnation: str
    state: str


class _SnapshotIdentity(msgspec.Struct, frozen=True):
    """The part of a service's snapshot that names its incarnation."""

    incarnation: str = ""


@click.command()
@click.argument("services", nargs=-1, type=click.Choice([service.value for service in Service]))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@config_flags("runtime")
def ps(services: tuple[str, ...], as_json: bool) -> int:
    """List the services with pid, incarnation and state.

    With SERVICES, list only those; the exit status is 1 unless all of them are ready, as for a health check.
    """
    rows = service_rows(settings().runtime, tuple(map(Service, services)) or tuple(Service))
    status = int(bool(services) and any(row.state != State.READY.value for row in rows))
    if as_json:
        click.echo(msgspec.json.encode(rows))
        return status
    cells = [_COLUMNS, *((row.service, str(row.pid or "-"), row.incarnation or "-", row.state) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(_COLUMNS))]
    for line in cells:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    return status


def service_rows(runtime: RuntimeSettings, services: Sequence[Service] = tuple(Service)) -> list[ServiceRow]:
    """Ask every service for its state; those that hold their lock but do not answer are silent, others absent."""
    from noria.shared.actor.endpoints import runtime_dir
    from noria.shared.actor.inspect import inspect_all
    from noria.shared.process.locks import living_holder

    folder = runtime_dir(runtime)
    holders = {service: living_holder(folder, service.value) for service in services}
    # Over ipc a service without a lock holder cannot answer: no need to wait for it.
    asked = tuple(service for service, holder in holders.items() if holder is not None or runtime.transport == "tcp")
    answers = inspect_all(runtime, asked) if asked else {}
    rows = []
    for service, holder in holders.items():
        if service in answers:
            answer = answers[service]
            incarnation = msgspec.json.decode(answer.json, type=_SnapshotIdentity).incarnation
            rows.append(ServiceRow(service.value, answer.pid, incarnation, answer.state.value))
        elif holder is not None:
            rows.append(ServiceRow(service.value, holder.pid, holder.incarnation, "silent"))
        else:
            rows.append(ServiceRow(service.value, 0, "", "absent"))
    return rows
