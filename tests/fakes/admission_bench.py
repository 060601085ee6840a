"""Admission's core on a bench: events by hand, invariants checked after each, clients that read or do not."""

import hashlib
from collections.abc import Sequence

from fakes.memory_database import MemoryDatabase

from noria.proto.base import Service, Stream
from noria.proto.frontdoor import Accepted, Delta, Finished, Generate, Rejected, Updates
from noria.proto.output import Open, TextRun, Texts
from noria.proto.sampling import Sampling
from noria.proto.scheduling import Capacity, ClassCapacity, Submission, Submit
from noria.services.admission.core.admission import Admission
from noria.services.admission.core.clients.client_session import ToClient
from noria.services.admission.core.ledger.usage_counters import CountedCosts
from noria.services.admission.core.state.events import (
    AdmissionEvent,
    AdmissionOutput,
    ClientMessage,
    ClockTick,
    FromClient,
    PeerJoined,
    PeerMessage,
    PromptTokenized,
)
from noria.services.admission.core.tenants.admission_limits import AdmissionLimits
from noria.services.admission.core.tenants.class_totals import TokenUsage, UsageKey
from noria.services.admission.core.tenants.tenant_policy import ClassRule, TenantPolicy, TenantRule
from noria.services.admission.metrics import bounds
from noria.services.admission.storage.journal import Journal
from noria.services.admission.storage.journal_records import WallClockOffset

SECOND = 1_000_000_000
ALICE, BOB = "client-alice", "client-bob"
FIRST_NUMBER = 100
CLOCK = WallClockOffset(1_700_000_000 * SECOND)
_ENVELOPE = ("ttl_ms", "ttl_first_ms", "credential", "traffic_class", "keep", "background", "grace_ms")
CLASSES = {
    "interactive": ClassRule("interactive", rank=2),
    "standard": ClassRule("standard", rank=1),
    "batch": ClassRule("batch", rank=0),
    "admin": ClassRule("admin", rank=3, isolated=True, queue_requests_max=2),
}


def tenant(name: str, **changes: object) -> TenantRule:
    """A tenant whose API key is its name, for all classes but admin."""
    values: dict[str, object] = {
        "classes": ("interactive", "standard", "batch"),
        "default_class": "standard",
        "keys": (hashlib.sha256(name.encode()).digest(),),
    }
    return TenantRule(name, **(values | changes))  # type: ignore[arg-type]  # a test's shorthand


def policy(*tenants: TenantRule, **classes: ClassRule) -> TenantPolicy:
    """The usual classes, some of them replaced, and these tenants."""
    return TenantPolicy({**CLASSES, **classes}, tenants)


def rules(**changes: int | bool | tuple[int, ...] | tuple[str, ...]) -> AdmissionLimits:
    values: dict[str, object] = {
        "models": ("small", "smaller"),
        "context_tokens": 64,
        "vocabulary": 1000,
        "eos_ids": (2,),
        "has_chat_template": True,
        "started_unix_s": 1,
        "requests_max": 8,
        "n_max": 4,
        "stop_strings_max": 4,
        "messages_max": 3,
        "tokenizing_characters_max": 10_000,
        "retention_ns": 60 * SECOND,
        "client_timeout_ns": 15 * SECOND,
        "bounds": bounds(),
    }
    return AdmissionLimits(**(values | changes))  # type: ignore[arg-type]  # a test's shorthand


def token_request(name: str = "r1", tokens: int = 3, n: int = 1, **changes: object) -> Generate:
    ttl = {key: changes.pop(key) for key in _ENVELOPE if key in changes}
    return Generate(
        name,
        token_ids=tuple(range(10, 10 + tokens)),
        n=n,
        sampling=Sampling(**changes),  # type: ignore[arg-type]  # a test's shorthand
        **ttl,  # type: ignore[arg-type]  # as above
    )


class Bench:
    """A core that is ready, with everything it said kept by kind."""

    def __init__(
        self,
        *,
        ready: bool = True,
        journal: bool = False,
        policy: TenantPolicy | None = None,
        **changes: int | bool | tuple[int, ...] | tuple[str, ...],
    ) -> None:
        self._begin = lambda **later: Admission(rules(**(changes | later)), FIRST_NUMBER, policy)
        self.core = self._begin()
        self.now_ns = 1_000 * SECOND
        self.used: dict[UsageKey, TokenUsage] = {}
        self.costs = CountedCosts()
        self.database = MemoryDatabase()
        self.journal = Journal(self.database) if journal else None
        if self.journal is not None:
            self._recover(self.journal)
        self.turn = AdmissionOutput([], [], [], [], [])
        self.incarnations: dict[str, int] = {}
        self.inbox: dict[str, list[ToClient]] = {}
        self.deaf: set[str] = set()
        if ready:
            self.ready()

    def ready(self) -> None:
        self.apply(PeerJoined(Service.SCHEDULER))
        self.apply(PeerJoined(Service.DETOKENIZER))
        self.capacity()
        self.step()

    def die(self, seconds: float = 0.0, **changes: object) -> None:
        """End without a word and, some time later, begin again from the journal; clients lose what was not read.

        changes: of the rules, which the next life begins with.
        """
        assert self.journal is not None
        self.now_ns += int(seconds * SECOND)
        self.core = self._begin(**changes)
        self.core.resume_costs(self.costs)
        self.inbox.clear()
        self._recover(self.journal)

    def _recover(self, journal: Journal) -> None:
        self.core.recover(journal.read(self.now_ns, CLOCK), self.now_ns)
        self.core.check()

    def _put_on_record(self) -> None:
        page = self.core.next_page(self.now_ns)
        if self.journal is None or page is None:
            return
        if self.journal.write(page, CLOCK):
            self.core.page_written(page)
        else:
            self.core.page_failed(self.now_ns)
        self.core.check()

    def capacity(self, *, submitted: int = 0, requests: int = 100, tokens: int = 10_000, largest: int = 64) -> None:
        self.from_peer(Capacity(submitted, (ClassCapacity("", requests, tokens),), largest_tokens=largest, ready=True))

    def apply(self, event: AdmissionEvent) -> bool:
        taken = self.core.apply(event)
        self.core.check()
        return taken

    def from_peer(self, body: object) -> None:
        self.apply(PeerMessage(body, self.now_ns))  # type: ignore[arg-type]  # whatever the test sends

    def send(self, client: str, body: FromClient, digest: bytes | None = None, seed: int = 7) -> bool:
        incarnation = self.incarnations.setdefault(client, 1)
        return self.apply(
            ClientMessage(
                client, incarnation, body, self.now_ns, repr(body).encode() if digest is None else digest, seed
            )
        )

    def pass_time(self, seconds: float) -> None:
        self.now_ns += int(seconds * SECOND)
        self.step()

    def step(self) -> AdmissionOutput:
        """One turn, as the shell makes it."""
        self.apply(ClockTick(self.now_ns))
        self.used, costs = self.core.take_usage()
        self._put_on_record()
        if not self.core.stuck:
            self.costs = costs
        self.core.confirm_costs(self.costs)
        self.turn = self.core.take(self.now_ns)
        self.core.check()
        for client in self.core.delivery.due(self.now_ns):
            while (message := self.core.delivery.next_message(client)) is not None:
                if client.id in self.deaf:
                    self.core.delivery.retry_later(client, self.now_ns)
                    break
                self.inbox.setdefault(client.id, []).append(message.body)
                self.core.delivery.mark_sent(message)
                self.core.check()
        self.core.check()
        return self.turn

    def generate(self, body: Generate, client: str = ALICE) -> None:
        self.send(client, body)
        self.step()

    def tokenized(self, number: int, ids: Sequence[int] = (5, 6, 7), problem: str = "") -> None:
        self.apply(PromptTokenized(number, self.now_ns, tuple(ids), problem, "prompt" if problem else ""))

    def text(
        self, request: int, start: int, ids: Sequence[int], characters: int, text: str, *, choice: int = 0, end: int = 0
    ) -> None:
        self.from_peer(Texts((TextRun(Stream(request, choice), 0, start, tuple(ids), characters, text, end),)))

    def read(self, client: str = ALICE) -> list[ToClient]:
        """What a client has got since it last read."""
        return self.inbox.pop(client, [])

    def rejection(self, client: str = ALICE) -> Rejected:
        (answer,) = self.read(client)
        assert isinstance(answer, Rejected), answer
        return answer

    def accepted(self, client: str = ALICE) -> Accepted:
        answer = self.read(client)[0]
        assert isinstance(answer, Accepted), answer
        return answer

    def submissions(self) -> list[Submission]:
        return [each for message in self.turn.scheduler if isinstance(message, Submit) for each in message.submissions]

    def opened(self) -> list[Stream]:
        return [
            each.stream for message in self.turn.detokenizer if isinstance(message, Open) for each in message.openings
        ]

    def idle(self) -> bool:
        counts = self.core.snapshot()
        return not any(counts[key] for key in ("requests", "streams", "tokenizing", "attachments"))


def deltas(messages: Sequence[ToClient]) -> list[Delta]:
    return [delta for message in messages if isinstance(message, Updates) for delta in message.deltas]


def finishes(messages: Sequence[ToClient]) -> list[Finished]:
    return [each for message in messages if isinstance(message, Updates) for each in message.finished]
