"""What is left of requests in clients and processes: nothing, once all have ended."""

from collections.abc import Mapping, Sequence
from typing import Final

from fakes.simulated.life import Life
from fakes.simulated.people import Person

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


def remains(people: Sequence[Person], lives: Mapping[Service, Life]) -> dict[str, object]:
    """Everything that must be nothing in the end, by name; what is nothing is there, too."""
    found: dict[str, object] = {
        "unended": [wish.request.id for person in people for wish in person.wishes if not wish.over],
        "calls": [list(person.protocol.calls) for person in people if person.alive and person.protocol.calls],
    }
    for service, life in lives.items():
        if not life.alive:
            found[service.value] = "dead"
            continue
        counts = life.shell.snapshot()
        found |= {f"{service.value} {name}": counts[name] for name in _KEPT[service]}
        if isinstance(life.shell, AdmissionService):
            found["usage"] = life.shell._usage.writes()
    return found
