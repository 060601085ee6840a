"""Builds each service's shell inside the simulation, as its `__main__` does, on simulated sockets."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from fakes.executor import EOS, VOCABULARY
from fakes.memory_database import MemoryDatabase
from fakes.simulated.machine import oracle
from fakes.simulated.machine.clock import MILLISECOND, SECOND
from fakes.simulated.machine.process import SimulatedProcess

from noria.proto.base import Service
from noria.proto.frontdoor import Code
from noria.services.admission.core.state.events import TokenizeJob
from noria.services.admission.core.tenants.admission_limits import AdmissionLimits
from noria.services.admission.core.tenants.tenant_policy import TenantPolicy
from noria.services.admission.public_mailbox import PublicMailbox
from noria.services.admission.service import AdmissionService
from noria.services.admission.storage.database import DatabaseWrite
from noria.services.admission.storage.journal import Journal
from noria.services.admission.storage.usage_writer import UsageWriter
from noria.services.admission.tokenizer_pool import TokenizeResult
from noria.services.detokenizer.service import DetokenizerService
from noria.services.scheduler.core.interface.settings import CoreSettings
from noria.services.scheduler.service import SchedulerService
from noria.shared.config.config import TelemetrySettings
from noria.shared.telemetry.telemetry import Telemetry

DOOR: Final = "sim://door"
RETENTION_NS: Final = 6 * SECOND
NO_TELEMETRY: Final = TelemetrySettings(spans_kept=0)
PEERS: Final = {
    Service.ADMISSION: (Service.SCHEDULER, Service.DETOKENIZER),
    Service.SCHEDULER: (Service.ADMISSION, Service.EXECUTOR, Service.DETOKENIZER),
    Service.EXECUTOR: (Service.SCHEDULER,),
    Service.DETOKENIZER: (Service.ADMISSION, Service.SCHEDULER),
}


def endpoint(service: Service) -> str:
    """Return the endpoint of a service's mailbox."""
    return f"sim://{service.value}"


def rules(requests_max: int) -> AdmissionLimits:
    """Return admission's limits: a small context, a short client timeout, so many requests, everything else ample."""
    return AdmissionLimits(
        models=("fake",),
        context_tokens=64,
        vocabulary=VOCABULARY,
        eos_ids=(EOS,),
        has_chat_template=False,
        started_unix_s=1,
        requests_max=requests_max,
        n_max=4,
        stop_strings_max=4,
        messages_max=3,
        tokenizing_characters_max=10_000,
        retention_ns=RETENTION_NS,
        client_timeout_ns=4 * SECOND,
    )


class SimulatedPool:
    """Stands in for admission's tokenizer pool: tokenizes after a delay, without threads."""

    def __init__(self, process: SimulatedProcess, after: Callable[[int, Callable[[], None]], None]) -> None:
        self._life = process
        self._after = after
        self._jobs: dict[int, TokenizeJob] = {}
        self._done: deque[TokenizeResult] = deque()

    def submit(self, job: TokenizeJob) -> None:
        self._jobs[job.number] = job
        self._after(self._life.network.rates.between(MILLISECOND // 4, 5 * MILLISECOND), lambda: self._finish(job))

    def abandon(self, number: int) -> None:
        self._jobs.pop(number, None)

    def collect(self) -> list[TokenizeResult]:
        found = list(self._done)
        self._done.clear()
        return found

    def counts(self) -> dict[str, int]:
        return {"waiting": len(self._jobs), "working": 0}

    def close(self) -> None:
        self._jobs.clear()

    def _finish(self, job: TokenizeJob) -> None:
        # A job that was abandoned comes out all the same, as one that a thread is at.
        self._jobs.pop(job.number, None)
        self._done.append(TokenizeResult(job, oracle.tokenize(job.prompt or ""), "", "prompt", Code.INVALID, 0.001))
        self._life.wake()


class SimulatedDatabase(MemoryDatabase):
    """Admission's database, which outlives it: what is committed stays; admission may die just before a commit."""

    def __init__(self) -> None:
        super().__init__()
        self.owner: SimulatedProcess | None = None

    def commit(self, writes: Sequence[DatabaseWrite], *, accepted: int = 0, forgotten: int = 0) -> bool:
        if self.owner is not None:
            self.owner.die_if_due()
        return super().commit(writes, accepted=accepted, forgotten=forgotten)

    @property
    def empty(self) -> bool:
        """Whether the database keeps nothing of any request."""
        return not any(self.count(table) for table in ("requests", "pieces", "pages"))


def admission(
    process: SimulatedProcess,
    after: Callable[[int, Callable[[], None]], None],
    policy: TenantPolicy,
    database: SimulatedDatabase,
    *,
    kept: bool,
) -> AdmissionService:
    """Build admission with its public mailbox. kept: whether it keeps a journal."""
    door = PublicMailbox(DOOR, process.mailbox.incarnation, 1 << 20, process.context)  # type: ignore[arg-type]  # as zmq's
    pool = SimulatedPool(process, after)
    telemetry = Telemetry(Service.ADMISSION, process.mailbox.incarnation, NO_TELEMETRY)
    database.owner = process
    usage = UsageWriter(database)
    journal = Journal(database) if kept else None
    chosen = rules(process.network.rates.requests_max)
    return AdmissionService(process.actor, telemetry, door, pool, chosen, policy, usage, journal)  # type: ignore[arg-type]  # the pool's stand-in


def scheduler(process: SimulatedProcess, settings: CoreSettings, tokens_interval_ns: int) -> SchedulerService:
    """Build the scheduler. tokens_interval_ns: for how long it collects tokens before it sends them."""
    telemetry = Telemetry(Service.SCHEDULER, process.mailbox.incarnation, NO_TELEMETRY)
    return SchedulerService(process.actor, telemetry, settings, tokens_interval_ns=tokens_interval_ns)


def detokenizer(process: SimulatedProcess) -> DetokenizerService:
    """Build the detokenizer with the oracle's vocabulary."""
    telemetry = Telemetry(Service.DETOKENIZER, process.mailbox.incarnation, NO_TELEMETRY)
    return DetokenizerService(process.actor, telemetry, oracle.vocabulary())


def names(services: Sequence[Service]) -> str:
    """Return the names of services, for messages to people."""
    return ", ".join(service.value for service in services)
