"""Tenants, classes, quotas and too little room under random events: invariants after each, and accounts that add up."""

import random

import pytest
from fakes.admission_bench import ALICE, BOB, FIRST_NUMBER, Bench, policy, tenant, token_request

from noria.proto.base import End, Ended, Stream
from noria.proto.frontdoor import Acknowledge, Cancel, Generate, Ping, Preview
from noria.proto.output import TextRun, Texts
from noria.proto.scheduling import Accounted, Capacity, ClassCapacity, Expenses, Spent, Submit, Withdraw
from noria.services.admission.core.state.events import TenancyChanged
from noria.services.admission.core.tenants.class_totals import TokenUsage, UsageKey
from noria.services.admission.core.tenants.tenant_policy import ClassRule, TenantPolicy

POLICIES: tuple[TenantPolicy, ...] = (
    policy(tenant("acme", concurrency_max=4, tokens_per_minute=6000, burst_tokens=200), tenant("beta")),
    policy(
        tenant("acme", tokens_per_minute=600, burst_tokens=90, n_max=2),
        tenant("beta", concurrency_max=2),
        batch=ClassRule("batch", rank=0, queue_requests_max=2),
    ),
    policy(tenant("beta", output_tokens_max=30)),
)
ROOM = 5


class Crowd:
    """Random requests of two tenants; a scheduler that has room for a few and says truly how much."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.bench = Bench(policy=POLICIES[0], requests_max=20)
        self.used: dict[UsageKey, TokenUsage] = {}
        self.scheduled: dict[Stream, int] = {}
        self.submitted = 0
        self.most = 0
        self.names = 0
        self.gone = 0

    def step(self) -> None:
        """One event and one turn; the scheduler hears of it at once or later."""
        self.draw.choice((self.generate, self.generate, self.generate, self.preview, self.cancel, self.emit, self.emit,
                          self.tokenize, self.change))()  # fmt: skip
        for client in (ALICE, BOB):
            self.bench.send(client, Ping())
        self.bench.pass_time(self.draw.choice([0.0, 0.01, 1.0]))
        for account, usage in self.bench.used.items():
            self.used.setdefault(account, TokenUsage()).add(usage)
        self.schedule()
        if self.draw.random() < 0.6:
            self.offer()
        self.bench.read(ALICE), self.bench.read(BOB)

    def request(self) -> Generate:
        self.names += 1
        draw = self.draw
        fields = {
            "credential": draw.choice(["acme", "beta", "beta", "nobody"]),
            "traffic_class": draw.choice(["", "interactive", "batch", "batch", "admin"]),
            "keep": draw.random() < 0.2,
            "background": draw.random() < 0.2,
        }
        if draw.random() < 0.3:
            return Generate(f"r{self.names}", prompt="some text", **fields)  # type: ignore[arg-type]  # drawn above
        most = draw.choice([None, 5, 20])
        return token_request(f"r{self.names}", draw.randint(1, 9), draw.randint(1, 3), max_tokens=most, **fields)

    def generate(self) -> None:
        self.bench.send(self.draw.choice([ALICE, BOB]), self.request())

    def preview(self) -> None:
        self.bench.send(self.draw.choice([ALICE, BOB]), Preview(self.request()))

    def cancel(self) -> None:
        name = f"r{self.draw.randint(max(0, self.names - 10), self.names)}"
        body = Cancel(name, left=self.draw.random() < 0.5)
        self.bench.send(self.draw.choice([ALICE, BOB]), self.draw.choice([body, Acknowledge((name,))]))

    def tokenize(self) -> None:
        for number in list(self.bench.core.state.tokenizer.working):
            self.bench.tokenized(number)

    def change(self) -> None:
        if self.draw.random() < 0.2:
            self.bench.apply(TenancyChanged(self.draw.choice(POLICIES), self.bench.now_ns))

    def emit(self) -> None:
        live = [choice for _, choice in self.bench.core.state.unfinished()]
        if not live:
            return
        choice = self.draw.choice(live)
        ids = tuple(range(self.draw.randint(1, 4)))
        end = self.draw.choice([0, End.STOP])
        start, text = len(choice.ids), "x" * len(ids)
        self.bench.from_peer(Texts((TextRun(choice.stream, 0, start, ids, choice.text.length, text, end),)))

    def schedule(self) -> None:
        for message in self.bench.turn.scheduler:
            match message:
                case Submit():
                    for each in message.submissions:
                        self.submitted += 1
                        self.scheduled[each.stream] = len(each.prompt_ids)
                    self.most = max(self.most, len(self.scheduled))
                case Withdraw():
                    pass
                case Ended():
                    gone = [each for each in message.streams if self.scheduled.pop(each, None) is not None]
                    self.bench.from_peer(Expenses(tuple(Spent(each, 3, 1, 10) for each in gone), self.gone + 1))
                    self.gone += len(gone)
                case Accounted():
                    pass

    def offer(self) -> None:
        free = max(0, ROOM - len(self.scheduled))
        tokens = max(0, 100 - sum(self.scheduled.values()))
        self.bench.from_peer(
            Capacity(self.submitted, (ClassCapacity("", free, tokens),), largest_tokens=64, ready=True)
        )


@pytest.mark.parametrize("seed", range(8))
def test_accounts_add_up_and_the_scheduler_is_never_given_more_than_it_offered(seed: int) -> None:
    crowd = Crowd(seed)
    bench = crowd.bench
    crowd.offer()
    for _ in range(400):
        crowd.step()
    state = bench.core.state
    for request in list(state.ledger.live.values()):
        state.end_all(request, End.CANCELLED, bench.now_ns, "over")
    for number in list(state.tokenizer.working):
        bench.tokenized(number, problem="over")
    for _ in range(2):
        bench.pass_time(0.0)
        for account, usage in bench.used.items():
            crowd.used.setdefault(account, TokenUsage()).add(usage)
        crowd.schedule()
    totals = state.totals
    assert totals.ended[End.SHED] or totals.ended[End.STOP]
    # Requests of an isolated class are not counted against the room, and there is none here but admin's, which nobody may use.
    assert crowd.most <= ROOM + 6, "one message may bring what replaces the streams that the next withdraws"
    assert sum(each.output_tokens for each in crowd.used.values()) == totals.output_tokens
    assert {
        name: class_totals.used
        for name, class_totals in state.usage_counters.class_totals.items()
        if class_totals.used.requests
    } == {name: usage for name, usage in crowd.used.items() if usage.requests}
    assert sum(each.requests for each in crowd.used.values()) > 10
    assert state.usage_counters.awaited == 0
    assert not any(each.streams for each in state.tenants)
    assert state.ledger.draw_number() > FIRST_NUMBER
