"""What each tenant used, by class: counted for the metrics, and handed out in pieces to be written down.

A request is counted once, at its end, however often it was asked for. What a stream cost in computation and cache is known
only when the scheduler has done with it, a step or two later; the scheduler tells that again until it is on record, perhaps
to a later life of ours, and numbers say what is there already.
"""

from dataclasses import dataclass, field, fields
from typing import Final, NamedTuple

from noria.proto.base import End, Stream
from noria.proto.frontdoor import Code
from noria.proto.scheduling import Expenses, Reclaimed, Spent
from noria.services.admission.core.ledger import Request, Stage

_WHOLE: Final = (End.STOP, End.LENGTH)


class Account(NamedTuple):
    """Whose, and in which class."""

    tenant: str
    traffic_class: str


class Told(NamedTuple):
    """How much the scheduler of incarnation `life` has told of costs: those numbered 1 to `number`."""

    life: int = 0
    number: int = 0


@dataclass(slots=True)
class Usage:
    """What was used. prompt_tokens: of requests that were begun; cached_tokens: those of them found in the cache.

    output_tokens: what clients got. computed_tokens: query tokens computed, again after preemptions included;
    wasted_tokens: those of them computed after the end. block_us: cache blocks held, times microseconds.
    """

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    computed_tokens: int = 0
    wasted_tokens: int = 0
    block_us: int = 0

    def add(self, other: "Usage") -> None:
        """Add another's figures to these."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


@dataclass(slots=True, eq=False)
class Traffic:
    """What has happened since the start. Delays go from the end of a running stream to the return of its last block."""

    used: Usage = field(default_factory=Usage)
    accepted: int = 0
    ended: dict[End, int] = field(default_factory=lambda: dict.fromkeys(End, 0))
    refused: dict[Code, int] = field(default_factory=dict)
    reclaims: int = 0
    reclaim_us_sum: int = 0
    reclaim_us_max: int = 0


class Accounts:
    """All accounts. unwritten: what was used since it was last taken. moved: whose counts of streams have changed since.

    told: the costs in it. owes_answer: the scheduler has told some since it last heard what is on record.
    """

    def __init__(self) -> None:
        self.told = Told()
        self.owes_answer = False
        self.traffic: dict[Account, Traffic] = {}
        self.unwritten: dict[Account, Usage] = {}
        self.moved: set[Account] = set()
        self._awaited: dict[Stream, tuple[Account, int]] = {}

    @property
    def awaited(self) -> int:
        """Ended streams whose cost is not known yet."""
        return len(self._awaited)

    def of(self, request: Request) -> Account:
        """A request's account."""
        return Account(request.key.tenant, request.traffic_class)

    def at(self, account: Account) -> Traffic:
        """An account's figures."""
        return self.traffic.setdefault(account, Traffic())

    def accept(self, request: Request) -> None:
        """Streams were accepted."""
        account = self.of(request)
        self.at(account).accepted += len(request.choices)
        self.moved.add(account)

    def refuse(self, account: Account, code: Code) -> None:
        """A request was refused."""
        refused = self.at(account).refused
        refused[code] = refused.get(code, 0) + 1

    def end(self, request: Request, stream: Stream, end: End, *, submitted: bool) -> None:
        """A stream ended; `submitted`: the scheduler knows it and will say what it cost."""
        account = self.of(request)
        self.at(account).ended[end] += 1
        self.moved.add(account)
        if submitted:
            self._awaited[stream] = (account, 0)

    def close(self, request: Request) -> int:
        """All streams of a request ended; returns the tokens that it is charged for."""
        usage = Usage(requests=1, output_tokens=sum(len(choice.ids) for choice in request.choices))
        if begun(request):
            usage.prompt_tokens = request.prompt_tokens
            usage.cached_tokens = min(choice.cached_tokens for choice in request.choices)
        elif (first := request.choices[0].stream) in self._awaited:
            # Of a prompt that came to nothing, what was computed counts.
            self._awaited[first] = (self.of(request), request.prompt_tokens)
        self._use(self.of(request), usage)
        return usage.prompt_tokens + usage.output_tokens

    def fresh(self, life: int, expenses: Expenses) -> tuple[Spent, ...]:
        """Those of the costs that the scheduler of this incarnation tells which are not counted yet."""
        known = self.told.number if self.told.life == life else 0
        entries = expenses.entries[max(known + 1 - expenses.first, 0) :]
        self.told = Told(life, max(known, expenses.first + len(expenses.entries) - 1))
        self.owes_answer = True
        return entries

    def spent(self, spent: Spent, request: Request | None) -> tuple[str, int]:
        """The scheduler has done with a stream; `request`: its own, if that is still in the ledger.

        Returns the tenant and what it owes for the beginning of a prompt that came to nothing.
        """
        known = self._awaited.pop(spent.stream, None)
        if known is None:
            # It goes on under a new attempt, or it ended in an earlier life, or before the scheduler was there again.
            barren = request is not None and request.stage is Stage.ENDED and not begun(request)
            first = request is not None and request.choices[0].stream == spent.stream
            tokens = request.prompt_tokens if request is not None and barren and first else 0
            known = (Account(spent.tenant, spent.traffic_class), tokens)
        account, prompt_tokens = known
        begun_tokens = min(prompt_tokens, spent.computed_tokens)
        usage = Usage(
            prompt_tokens=begun_tokens,
            computed_tokens=spent.computed_tokens,
            wasted_tokens=spent.wasted_tokens,
            block_us=spent.block_us,
        )
        self._use(account, usage)
        return account.tenant, begun_tokens

    def reclaimed(self, entry: Reclaimed) -> Account | None:
        """The last block of a stream that was running when it ended is back; returns whose it was, if that is known."""
        known = self._awaited.get(entry.stream)
        if known is None:
            return None
        traffic = self.at(known[0])
        traffic.reclaims += 1
        traffic.reclaim_us_sum += entry.delay_us
        traffic.reclaim_us_max = max(traffic.reclaim_us_max, entry.delay_us)
        return known[0]

    def scheduler_left(self) -> None:
        """What the last scheduler knew of ended streams is lost with it."""
        self._awaited.clear()

    def take(self) -> dict[Account, Usage]:
        """What was used since the last call."""
        taken, self.unwritten = self.unwritten, {}
        return taken

    def _use(self, account: Account, usage: Usage) -> None:
        self.at(account).used.add(usage)
        self.unwritten.setdefault(account, Usage()).add(usage)


def begun(request: Request) -> bool:
    """Whether a request got as far as a token or came to an end of its own."""
    return any(choice.first_token_ns is not None or choice.end in _WHOLE for choice in request.choices)
