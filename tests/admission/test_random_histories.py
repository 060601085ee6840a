"""Admission under random events: invariants after each, and every client ends with exactly the ledger's text."""

import random
from collections.abc import Callable

import pytest
from fakes.admission_bench import ALICE, BOB, FIRST_NUMBER, SECOND, Bench, token_request

from noria.proto.base import End, Logprobs, Service, Stream
from noria.proto.frontdoor import Accepted, Acknowledge, Attach, Cancel, Generate, Ping, Updates
from noria.proto.output import TextRun, Texts, Unknown
from noria.services.admission.core.ledger.request import ChoiceRecord
from noria.services.admission.core.state.events import PeerLost

LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Reader:
    """A client that assembles what it is sent, as the protocol says, and notices every hole."""

    def __init__(self) -> None:
        self.ids: dict[tuple[str, int], list[int]] = {}
        self.text: dict[tuple[str, int], str] = {}
        self.logprobs: dict[tuple[str, int], list[Logprobs]] = {}
        self.ended: dict[tuple[str, int], int] = {}

    def take(self, body: object) -> None:
        if not isinstance(body, Updates):
            return
        for delta in body.deltas:
            key = (delta.id, delta.index)
            ids, text = self.ids.setdefault(key, []), self.text.get(key, "")
            assert delta.start <= len(ids) and delta.characters <= len(text), "a hole"
            self.logprobs.setdefault(key, []).extend(delta.logprobs[len(ids) - delta.start :])
            ids.extend(delta.ids[len(ids) - delta.start :])
            self.text[key] = text + delta.text[len(text) - delta.characters :]
        for finished in body.finished:
            key = (finished.id, finished.index)
            assert finished.output_tokens == len(self.ids.get(key, []))
            assert self.ended.setdefault(key, finished.end) == finished.end, "two ends"


def true_run(stream: Stream, start: int, count: int) -> tuple[tuple[int, ...], str]:
    """What a stream emits at given positions: one letter a token."""
    ids = tuple((stream.request * 7 + stream.choice * 3 + position) % 26 for position in range(start, start + count))
    return ids, "".join(LETTERS[each] for each in ids)


def told_run(choice: ChoiceRecord, start: int, ids: tuple[int, ...], text: str, end: int) -> TextRun:
    """Its report, with log-probabilities where the choice asks for them."""
    asks = choice.sampling.logprobs is not None
    logprobs = tuple(Logprobs(-float(token), b"", start + place) for place, token in enumerate(ids))
    return TextRun(choice.stream, 0, start, ids, start, text, end, logprobs=logprobs if asks else ())


class History:
    """Random events for one bench; each name is used by one client and once only."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.bench = Bench(requests_max=6, update_tokens_max=5, retention_ns=5 * SECOND)
        self.readers = {ALICE: Reader(), BOB: Reader()}
        self.used = 0
        self.actions: list[Callable[[], object]] = [
            *[self.generate] * 2,
            *[self.emit] * 4,
            self.prompt,
            self.tokenize,
            lambda: self.bench.send(self.client(), Cancel(self.known(), self.draw.choice([None, 0, 2]))),
            lambda: self.bench.send(self.client(), Acknowledge((self.known(),))),
            lambda: self.bench.from_peer(Unknown((Stream(FIRST_NUMBER + self.draw.randint(0, 30), 0),))),
            lambda: self.bench.deaf.symmetric_difference_update({self.client()}),
            self.lose_a_peer,
            lambda: self.bench.pass_time(self.draw.choice([0.0, 0.01, 0.5, 2.0])),
        ]

    def client(self) -> str:
        return self.draw.choice([ALICE, BOB])

    def known(self) -> str:
        return f"r{self.draw.randint(0, self.used)}"

    def fresh(self) -> str:
        self.used += 1
        return f"r{self.used}"

    def generate(self) -> None:
        tokens, n = self.draw.randint(1, 5), self.draw.randint(1, 3)
        name = self.fresh()
        logprobs = 3 if self.used % 3 == 0 else None
        self.bench.send(self.client(), token_request(name, tokens=tokens, n=n, logprobs=logprobs))

    def prompt(self) -> None:
        text, ttl = "x" * self.draw.randint(1, 50), self.draw.choice([None, 900])
        self.bench.send(self.client(), Generate(self.fresh(), prompt=text, ttl_ms=ttl))

    def tokenize(self) -> None:
        for number in list(self.bench.core.state.tokenizer.working)[:2]:
            self.bench.tokenized(number, problem=self.draw.choice(["", "", "bad"]))

    def emit(self) -> None:
        live = [choice for _, choice in self.bench.core.state.unfinished()]
        if live:
            choice = self.draw.choice(live)
            back, skip = self.draw.randint(0, 3), self.draw.randint(0, 9) // 8
            start = max(len(choice.ids) - back, 0) + skip
            ids, text = true_run(choice.stream, start, self.draw.randint(0, 6))
            end = self.draw.choice([0, 0, 0, End.STOP])
            self.bench.from_peer(Texts((told_run(choice, start, ids, text, end),)))

    def lose_a_peer(self) -> None:
        self.bench.apply(PeerLost(self.draw.choice([Service.SCHEDULER, Service.DETOKENIZER])))
        self.bench.ready()

    def turn(self) -> None:
        """End a turn, perhaps; now and then the peers' sockets take nothing of it."""
        if self.draw.random() < 0.5:
            turn = self.bench.step()
            if self.draw.random() < 0.2:
                self.bench.core.restore(turn.scheduler, turn.detokenizer)
                self.bench.core.check()
        self.read()

    def read(self) -> None:
        for name, reader in self.readers.items():
            for body in self.bench.read(name):
                reader.take(body)

    def finish(self) -> None:
        """Let every client read, end every stream, and compare with the ledger."""
        bench = self.bench
        bench.deaf.clear()
        for number in list(bench.core.state.tokenizer.working):
            bench.tokenized(number)
        for _, choice in list(bench.core.state.unfinished()):
            ids, text = true_run(choice.stream, len(choice.ids), 4)
            bench.from_peer(Texts((told_run(choice, len(choice.ids), ids, text, End.LENGTH),)))
        truth = {
            (request.key.id, choice.stream.choice): choice
            for request in bench.core.state.ledger.requests.values()
            for choice in request.choices
        }
        bench.pass_time(1)
        self.read()
        for reader in self.readers.values():
            for key in reader.text.keys() & truth.keys():
                assert reader.text[key] == truth[key].text.since(0)
                assert reader.ids[key] == list(truth[key].ids)
                assert reader.logprobs[key] == truth[key].logprobs
                asks = truth[key].sampling.logprobs is not None
                assert [each.logprob for each in reader.logprobs[key]] == [-each for each in reader.ids[key] if asks]


@pytest.mark.parametrize("seed", range(20))
def test_invariants_hold_and_readers_get_everything_exactly_once(seed: int) -> None:
    history = History(seed)
    bench = history.bench
    for _ in range(250):
        history.draw.choice(history.actions)()
        bench.send(ALICE, Ping())
        bench.send(BOB, Ping())
        history.turn()
    history.finish()
    assert any(reader.ended for reader in history.readers.values())
    assert bench.idle()
    bench.pass_time(10)
    assert bench.core.state.ledger.requests == {}


def test_an_attachment_handed_to_and_fro_gives_each_client_no_hole() -> None:
    bench = Bench()
    readers = {ALICE: Reader(), BOB: Reader()}
    bench.generate(token_request())
    for turn in range(20):
        owner = ALICE if turn % 2 else BOB
        bench.send(owner, Attach("r1"))
        ids, text = true_run(Stream(100, 0), turn * 3, 3)
        bench.text(100, turn * 3, ids, turn * 3, text)
        bench.step()
        for name, reader in readers.items():
            for body in bench.read(name):
                reader.take(body)
        assert isinstance(readers[owner].text["r1", 0], str)
        assert len(readers[owner].text["r1", 0]) == 3 * (turn + 1)


def test_acceptance_always_precedes_the_first_delta() -> None:
    bench = Bench()
    bench.send(ALICE, token_request())
    bench.text(100, 0, (1,), 0, "a", end=End.STOP)
    bench.step()
    got = bench.read()
    assert isinstance(got[0], Accepted)
    assert isinstance(got[1], Updates)
