"""Checks at the end of a run: every accepted stream ended once, and every client got the right answer."""

from collections import Counter
from dataclasses import dataclass, field

from fakes.memory_database import MemoryDatabase
from fakes.simulated.machine import oracle
from fakes.simulated.machine.clock import MILLISECOND
from fakes.simulated.scenario.client import SimulatedClient
from fakes.simulated.scenario.issued_requests import ChoiceOutput, IssuedRequest
from fakes.simulated.scenario.tenancy import Tenancy

from noria.proto.base import End, Service, Stream
from noria.proto.scheduling import Spent
from noria.services.admission.core.state.admission_state import AdmissionState
from noria.services.admission.core.state.events import AcceptedLogEntry, EndedLogEntry, RequestLogEntry

_FAILURES_MAX = 3
_SHUT = "the server is shutting down"


class Violation(AssertionError):  # noqa: N818  # a failed check
    """A check of a simulated run failed."""


@dataclass(slots=True, eq=False)
class SchedulerCosts:
    """Costs of streams that one scheduler process reported; unaccounted: how many reports nobody had acknowledged at its death."""

    spent: list[Spent] = field(default_factory=list)
    unaccounted: int = 0


@dataclass(slots=True, eq=False)
class RunRecord:
    """What was observed of one run: requests accepted and ended, failed steps, charges and costs.

    failed: how often a stream was in a step that failed, or in flight when the executor died. taken: tokens taken from
    each tenant's bucket since admission last started. rejoined: whether any process joined again after a break.
    shut: requests refused because the server shuts down. costs: by the scheduler's incarnation.
    """

    tenancy: Tenancy
    counts: Counter[str] = field(default_factory=Counter)
    accepted: dict[int, AcceptedLogEntry] = field(default_factory=dict)
    ended: dict[Stream, EndedLogEntry] = field(default_factory=dict)
    failed: Counter[Stream] = field(default_factory=Counter)
    taken: Counter[int] = field(default_factory=Counter)
    rejoined: bool = False
    shut: set[str] = field(default_factory=set)
    costs: dict[int, SchedulerCosts] = field(default_factory=dict)

    def note(self, note: RequestLogEntry, now_ns: int, issued: IssuedRequest | None) -> None:
        """Record one line of admission's request log; raise Violation for a second acceptance, a second end or an early deadline."""
        match note:
            case AcceptedLogEntry():
                if note.number in self.accepted:
                    raise Violation(f"request {note.number} was accepted twice")
                self.accepted[note.number] = note
            case EndedLogEntry(end=End.SHED, detail=detail) if detail.startswith(_SHUT):
                self.shut.add(
                    note.id
                )  # its client was refused, but it is not in the journal as ended: the next process goes on with it
            case EndedLogEntry():
                stream = Stream(note.number, note.choice)
                if stream in self.ended:
                    raise Violation(f"{stream} ended as {self.ended[stream].end.label}, then as {note.end.label}")
                self.ended[stream] = note
                if note.end is End.DEADLINE and issued is not None:
                    self._check_deadline(note, now_ns, issued)
            case _:
                pass

    def _check_deadline(self, note: EndedLogEntry, now_ns: int, issued: IssuedRequest) -> None:
        first_ms, whole_ms = self.tenancy.ttls_ms(issued.request)
        ttls = [whole_ms] if note.output_tokens else [first_ms, whole_ms]
        ttl_ms = min((each for each in ttls if each is not None), default=None)
        # What is left of a time to live crosses processes in whole milliseconds.
        if ttl_ms is None or now_ns - issued.begun_ns < (ttl_ms - 1) * MILLISECOND:
            raise Violation(f"{note.id} ended by a deadline after {now_ns - issued.begun_ns} ns of {ttl_ms} ms")

    def failures(self, request_id: str, index: int) -> int:
        """Return how many failed steps a choice was in, under any number that its request had."""
        numbers = [number for number, note in self.accepted.items() if note.id == request_id]
        return max((self.failed[Stream(number, index)] for number in numbers), default=0)


def check_outcome(
    clients: list[SimulatedClient], record: RunRecord, state: AdmissionState, database: MemoryDatabase
) -> None:
    """Raise Violation unless every accepted stream ended once and every client got the right answer."""
    for note in record.accepted.values():
        for choice in range(note.choices):
            if Stream(note.number, choice) not in record.ended:
                raise Violation(f"{note.id}: choice {choice} was accepted and never ended")
    # A copy of a request that arrives after its end was acknowledged is a new request; nobody reads it, so it is cancelled.
    accepted = record.accepted.values()
    record.counts["accepted again"] += len(accepted) - len({note.id for note in accepted})
    for issued in [issued for client in clients for issued in client.issued_requests]:
        if issued.refused is not None:
            if issued.refused.code not in record.tenancy.refusals(issued.request):
                raise Violation(f"{issued.request.id} was refused: {issued.refused}")
            record.counts["refused"] += 1
        elif not issued.left:
            for index in range(issued.request.n):
                record.counts[f"end: {issued.outputs[index].end}"] += 1
                _check_choice(issued, index, record)
    _check_buckets(state, record)
    _check_totals(state, record)
    _check_usage(record, database)
    _check_costs(record, database)


def _check_choice(issued: IssuedRequest, index: int, record: RunRecord) -> None:
    output, right = issued.outputs[index], oracle.answer(issued.request, index)
    name = f"{issued.request.id} choice {index}"
    if output.end in (End.STOP.label, End.LENGTH.label):
        got = (tuple(output.ids), output.text, output.end, output.matched)
        if got != (right.ids, right.text, right.end.label, right.matched):
            raise Violation(f"{name} got {got}, alone it gets {right}")
    else:
        if right.ids[: len(output.ids)] != tuple(output.ids):
            raise Violation(f"{name} got {output.ids} before its end, alone it gets {right.ids}")
        if not oracle.prefix_text(issued.request, tuple(output.ids)).startswith(output.text):
            raise Violation(f"{name} got {output.text!r} of ids {output.ids}")
        _check_early_end(issued, index, output.end, record)
    if output.output_tokens != len(output.ids):
        raise Violation(f"{name}: {output.output_tokens} tokens are charged, {len(output.ids)} were sent")
    _check_logprobs(name, output, right, record)


def _check_logprobs(name: str, output: ChoiceOutput, right: oracle.Answer, record: RunRecord) -> None:
    wanted = right.logprobs[: len(output.ids)]
    if len(output.logprobs) != len(wanted):
        raise Violation(f"{name} has {len(output.logprobs)} log-probabilities of {len(wanted)}")
    for got, each in zip(output.logprobs, wanted, strict=True):
        record.counts["logprobs"] += 1
        lost = record.rejoined and oracle.is_unknown(got) and (got.token, got.character) == (each.token, each.character)
        if got != each and not lost:
            raise Violation(f"{name} has log-probabilities {got}, alone it gets {each}")


def _check_early_end(issued: IssuedRequest, index: int, end: str, record: RunRecord) -> None:
    nothing = not issued.outputs[index].ids
    first_ms, whole_ms = record.tenancy.ttls_ms(issued.request)
    reasons = {
        End.CANCELLED.label: issued.cancelled,
        End.DEADLINE.label: whole_ms is not None or (first_ms is not None and nothing),
        End.SHED.label: issued.request.id in record.shut
        or (nothing and (record.tenancy.may_be_shed(issued.request) or record.counts["disk full"] > 0)),
        # A suspected stream that then failed alone twice.
        End.ERROR.label: record.failures(issued.request.id, index) >= _FAILURES_MAX,
    }
    if not reasons.get(end, False):
        raise Violation(f"{issued.request.id} choice {index} ended as {end!r} for no reason")


def _check_totals(state: AdmissionState, record: RunRecord) -> None:
    """Check that admission's totals over all its processes equal the ends that were observed."""
    ended = Counter(note.end for note in record.ended.values())
    totals = {end: count for end, count in state.totals.ended.items() if count}
    if totals != ended or state.totals.accepted != len(record.ended):
        raise Violation(f"{state.totals.accepted} accepted and {totals} ended are counted, {ended} are observed")
    requests = len({note.number for note in record.ended.values()})
    charged = sum(each.used.requests for each in state.usage_counters.class_totals.values())
    if charged != requests:
        raise Violation(f"{charged} requests are counted as charged, {requests} ended")


def _check_usage(record: RunRecord, database: MemoryDatabase) -> None:
    """Check that written usage counts each request and each token once."""
    requests = len({note.number for note in record.ended.values()})
    tokens = sum(note.output_tokens for note in record.ended.values())
    ((written_requests, written_tokens),) = database.read(
        "SELECT ifnull(sum(requests), 0), ifnull(sum(output_tokens), 0) FROM usage"
    )
    if (written_requests, written_tokens) != (requests, tokens):
        raise Violation(
            f"usage of {written_requests} requests and {written_tokens} tokens is written, {requests} and {tokens} ended"
        )


def _check_costs(record: RunRecord, database: MemoryDatabase) -> None:
    """Check that written costs count each report once, and any part of those unacknowledged when a scheduler died."""
    ((computed, block_us),) = database.read(
        "SELECT ifnull(sum(computed_tokens), 0), ifnull(sum(block_us), 0) FROM usage"
    )
    found = [spent for costs in record.costs.values() for spent in costs.spent]
    sure = [spent for costs in record.costs.values() for spent in costs.spent[: len(costs.spent) - costs.unaccounted]]
    least = sum(each.computed_tokens for each in sure), sum(each.block_us for each in sure)
    most = sum(each.computed_tokens for each in found), sum(each.block_us for each in found)
    if not (least[0] <= computed <= most[0] and least[1] <= block_us <= most[1]):
        raise Violation(f"{computed} computed tokens and {block_us} block µs are written, not {least} to {most}")


def _check_buckets(state: AdmissionState, record: RunRecord) -> None:
    """Check that no stream is under way, and that each tenant's bucket was charged exactly what it used."""
    if record.counts["death of admission"]:
        return  # a bucket is restored from its level in the journal
    for tenant in state.tenants:
        if tenant.streams:
            raise Violation(f"tenant {tenant.rule.name} has {tenant.streams} streams under way")
        if tenant.bucket is None or record.counts[f"death of {Service.ADMISSION.value}"]:
            continue  # the counts here are of one life
        used = [
            each.used
            for account, each in state.usage_counters.class_totals.items()
            if account.tenant == tenant.rule.name
        ]
        tokens = sum(each.prompt_tokens + each.output_tokens for each in used)
        record.counts["charged tokens"] += tokens
        if record.taken[id(tenant.bucket)] != tokens:
            taken = record.taken[id(tenant.bucket)]
            raise Violation(f"tenant {tenant.rule.name} was charged {taken} tokens and used {tokens}")
