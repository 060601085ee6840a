"""Lists what clients and processes still keep of requests; empty once all requests have ended."""

from collections.abc import Mapping, Sequence
from typing import Final

from fakes.simulated.machine.process import SimulatedProcess
from fakes.simulated.scenario.client import SimulatedClient

from noria.proto.base import Service
from noria.services.admission.service import AdmissionService

_KEPT: Final = {
    Service.ADMISSION: ("requests", "streams", "tokenizing", "attachments", "orphans"),
    Service.SCHEDULER: (
        "waiting",
        "running",
        "finished",
        "blocks_used",
        "slots_used",
        "in_flight",
        "tokens_held",
        "unaccounted",
    ),
    Service.EXECUTOR: ("queued_plans",),
    Service.DETOKENIZER: ("streams", "spans"),
}


def leftovers(clients: Sequence[SimulatedClient], processes: Mapping[Service, SimulatedProcess]) -> dict[str, object]:
    """Return what is kept, by name; an empty value means that nothing is left under that name."""
    found: dict[str, object] = {
        "unended": [issued.request.id for client in clients for issued in client.issued_requests if not issued.over],
        "calls": [list(client.protocol.calls) for client in clients if client.alive and client.protocol.calls],
    }
    for service, process in processes.items():
        if not process.alive:
            found[service.value] = "dead"
            continue
        counts = process.shell.snapshot()
        found |= {f"{service.value} {name}": counts[name] for name in _KEPT[service]}
        if isinstance(process.shell, AdmissionService):
            found["usage"] = process.shell._usage.writes()
    return found
