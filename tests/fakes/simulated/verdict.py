"""What must be true in the end: of every request that was accepted, and of everything that people were given."""

from collections import Counter
from dataclasses import dataclass, field

from fakes.memory_database import MemoryDatabase
from fakes.simulated import oracle
from fakes.simulated.clock import MILLISECOND
from fakes.simulated.people import Person
from fakes.simulated.traffic import Traffic
from fakes.simulated.wishes import Read, Wish

from noria.proto.base import End, Service, Stream
from noria.proto.scheduling import Spent
from noria.services.admission.core.state.admission_state import AdmissionState
from noria.services.admission.core.state.events import AcceptedLogEntry, EndedLogEntry, RequestLogEntry

_FAILURES_MAX = 3
_SHUT = "the server is shutting down"


class Violation(AssertionError):  # noqa: N818  # a state of affairs
    """Something that must hold does not."""


@dataclass(slots=True, eq=False)
class Costs:
    """What one life of the scheduler found streams to have cost; unaccounted: of how many it died unanswered."""

    spent: list[Spent] = field(default_factory=list)
    unaccounted: int = 0


@dataclass(slots=True, eq=False)
class Record:
    """What admission's book says became of requests, and what happened to their streams.

    failed: how often a stream was in a step that failed, or in flight when the executor died. taken: tokens taken from
    each tenant's bucket in admission's present life. rejoined: whether a process has joined that another had known before.
    shut: requests whose client was told that the server shuts down. costs: by the scheduler's incarnation.
    """

    traffic: Traffic
    counts: Counter[str] = field(default_factory=Counter)
    accepted: dict[int, AcceptedLogEntry] = field(default_factory=dict)
    ended: dict[Stream, EndedLogEntry] = field(default_factory=dict)
    failed: Counter[Stream] = field(default_factory=Counter)
    taken: Counter[int] = field(default_factory=Counter)
    rejoined: bool = False
    shut: set[str] = field(default_factory=set)
    costs: dict[int, Costs] = field(default_factory=dict)

    def note(self, note: RequestLogEntry, now_ns: int, wish: Wish | None) -> None:
        """Each request is accepted once and each stream ends once, and not before its time. wish: whose it is, if known."""
        match note:
            case AcceptedLogEntry():
                if note.number in self.accepted:
                    raise Violation(f"request {note.number} was accepted twice")
                self.accepted[note.number] = note
            case EndedLogEntry(end=End.SHED, detail=detail) if detail.startswith(_SHUT):
                self.shut.add(note.id)  # told to its client and not put on record: the next life goes on with it
            case EndedLogEntry():
                stream = Stream(note.number, note.choice)
                if stream in self.ended:
                    raise Violation(f"{stream} ended as {self.ended[stream].end.label}, then as {note.end.label}")
                self.ended[stream] = note
                if note.end is End.DEADLINE and wish is not None:
                    self._judge_deadline(note, now_ns, wish)
            case _:
                pass

    def _judge_deadline(self, note: EndedLogEntry, now_ns: int, wish: Wish) -> None:
        first_ms, whole_ms = self.traffic.ttls_ms(wish.request)
        ttls = [whole_ms] if note.output_tokens else [first_ms, whole_ms]
        ttl_ms = min((each for each in ttls if each is not None), default=None)
        # What is left of a time to live crosses processes in whole milliseconds.
        if ttl_ms is None or now_ns - wish.begun_ns < (ttl_ms - 1) * MILLISECOND:
            raise Violation(f"{note.id} ended by a deadline after {now_ns - wish.begun_ns} ns of {ttl_ms} ms")

    def failures(self, request_id: str, index: int) -> int:
        """How many failed steps a choice was in, under the numbers that its request had."""
        numbers = [number for number, note in self.accepted.items() if note.id == request_id]
        return max((self.failed[Stream(number, index)] for number in numbers), default=0)


def judge(people: list[Person], record: Record, state: AdmissionState, database: MemoryDatabase) -> None:
    """Raise Violation unless every accepted stream has its one end and everybody got what was right."""
    for note in record.accepted.values():
        for choice in range(note.choices):
            if Stream(note.number, choice) not in record.ended:
                raise Violation(f"{note.id}: choice {choice} was accepted and never ended")
    # A repetition that arrives after the end was acknowledged is a new request; nobody reads it, so it is cancelled.
    accepted = record.accepted.values()
    record.counts["accepted again"] += len(accepted) - len({note.id for note in accepted})
    for wish in [wish for person in people for wish in person.wishes]:
        if wish.refused is not None:
            if wish.refused.code not in record.traffic.refusals(wish.request):
                raise Violation(f"{wish.request.id} was refused: {wish.refused}")
            record.counts["refused"] += 1
        elif not wish.left:
            for index in range(wish.request.n):
                record.counts[f"end: {wish.reads[index].end}"] += 1
                _judge_choice(wish, index, record)
    _judge_state(state, record)
    _judge_totals(state, record)
    _judge_usage(record, database)
    _judge_costs(record, database)


def _judge_choice(wish: Wish, index: int, record: Record) -> None:
    read, right = wish.reads[index], oracle.answer(wish.request, index)
    name = f"{wish.request.id} choice {index}"
    if read.end in (End.STOP.label, End.LENGTH.label):
        got = (tuple(read.ids), read.text, read.end, read.matched)
        if got != (right.ids, right.text, right.end.label, right.matched):
            raise Violation(f"{name} got {got}, alone it gets {right}")
    else:
        if right.ids[: len(read.ids)] != tuple(read.ids):
            raise Violation(f"{name} got {read.ids} before its end, alone it gets {right.ids}")
        if not oracle.prefix_text(wish.request, tuple(read.ids)).startswith(read.text):
            raise Violation(f"{name} got {read.text!r} of ids {read.ids}")
        _judge_early_end(wish, index, read.end, record)
    if read.output_tokens != len(read.ids):
        raise Violation(f"{name}: {read.output_tokens} tokens are charged, {len(read.ids)} were sent")
    _judge_logprobs(name, read, right, record)


def _judge_logprobs(name: str, read: Read, right: oracle.Answer, record: Record) -> None:
    wanted = right.logprobs[: len(read.ids)]
    if len(read.logprobs) != len(wanted):
        raise Violation(f"{name} has {len(read.logprobs)} log-probabilities of {len(wanted)}")
    for got, each in zip(read.logprobs, wanted, strict=True):
        record.counts["logprobs"] += 1
        lost = record.rejoined and oracle.is_unknown(got) and (got.token, got.character) == (each.token, each.character)
        if got != each and not lost:
            raise Violation(f"{name} has log-probabilities {got}, alone it gets {each}")


def _judge_early_end(wish: Wish, index: int, end: str, record: Record) -> None:
    nothing = not wish.reads[index].ids
    first_ms, whole_ms = record.traffic.ttls_ms(wish.request)
    reasons = {
        End.CANCELLED.label: wish.cancelled,
        End.DEADLINE.label: whole_ms is not None or (first_ms is not None and nothing),
        End.SHED.label: wish.request.id in record.shut
        or (nothing and (record.traffic.may_be_shed(wish.request) or record.counts["disk full"] > 0)),
        # Who was suspected, and then failed alone twice.
        End.ERROR.label: record.failures(wish.request.id, index) >= _FAILURES_MAX,
    }
    if not reasons.get(end, False):
        raise Violation(f"{wish.request.id} choice {index} ended as {end!r} for no reason")


def _judge_totals(state: AdmissionState, record: Record) -> None:
    """What the books say of all lives is what was told of each end."""
    ended = Counter(note.end for note in record.ended.values())
    totals = {end: count for end, count in state.totals.ended.items() if count}
    if totals != ended or state.totals.accepted != len(record.ended):
        raise Violation(f"{state.totals.accepted} accepted and {totals} ended are counted, {ended} are told")
    requests = len({note.number for note in record.ended.values()})
    charged = sum(each.used.requests for each in state.usage_counters.class_totals.values())
    if charged != requests:
        raise Violation(f"{charged} requests are counted as charged, {requests} ended")


def _judge_usage(record: Record, database: MemoryDatabase) -> None:
    """What is written down of usage, with what still waits to be, is each request and each token once."""
    requests = len({note.number for note in record.ended.values()})
    tokens = sum(note.output_tokens for note in record.ended.values())
    ((written_requests, written_tokens),) = database.read(
        "SELECT ifnull(sum(requests), 0), ifnull(sum(output_tokens), 0) FROM usage"
    )
    if (written_requests, written_tokens) != (requests, tokens):
        raise Violation(
            f"usage of {written_requests} requests and {written_tokens} tokens is written, {requests} and {tokens} ended"
        )


def _judge_costs(record: Record, database: MemoryDatabase) -> None:
    """What is written down of costs is each once; of what a scheduler died with before it had an answer, any part."""
    ((computed, block_us),) = database.read(
        "SELECT ifnull(sum(computed_tokens), 0), ifnull(sum(block_us), 0) FROM usage"
    )
    found = [spent for costs in record.costs.values() for spent in costs.spent]
    sure = [spent for costs in record.costs.values() for spent in costs.spent[: len(costs.spent) - costs.unaccounted]]
    least = sum(each.computed_tokens for each in sure), sum(each.block_us for each in sure)
    most = sum(each.computed_tokens for each in found), sum(each.block_us for each in found)
    if not (least[0] <= computed <= most[0] and least[1] <= block_us <= most[1]):
        raise Violation(f"{computed} computed tokens and {block_us} block µs are written, not {least} to {most}")


def _judge_state(state: AdmissionState, record: Record) -> None:
    """Nothing is under way, and each tenant's bucket lacks what it used and nothing else."""
    if record.counts["death of admission"]:
        return  # a bucket is filled again from its level on record
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
