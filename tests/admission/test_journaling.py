"""What a new process takes over from the journal: streams, readers, deadlines, quotas, counts; and what a full disk does."""

import dataclasses
import random
from array import array

import pytest
from fakes.admission_bench import ALICE, BOB, CLOCK, SECOND, Bench, deltas, finishes, policy, tenant, token_request

from noria.proto.base import End, Logprobs, Service, Stream
from noria.proto.frontdoor import Accepted, Acknowledge, Attach, Cancel, Code, Generate, Have, Rejected
from noria.proto.output import Open, TextRun, Texts
from noria.proto.sampling import Sampling
from noria.proto.scheduling import Reclaimed, Reclaims, Submit
from noria.services.admission.core.ledger.request import ChoiceRecord, Request, RequestKey, RequestStage
from noria.services.admission.core.ledger.unsaved_changes import PAGES_PER_FOLD, JournalPart
from noria.services.admission.core.state.events import PeerJoined
from noria.services.admission.core.tenants.class_totals import StreamMeasure
from noria.services.admission.metrics import ClassMetrics
from noria.services.admission.storage import journal_records
from noria.shared.telemetry import instruments
from noria.shared.telemetry.instruments import MetricKind
from noria.shared.telemetry.metrics import MetricValue

STREAM = Stream(100, 0)


def begun(**changes: int) -> Bench:
    bench = Bench(journal=True, **changes)
    bench.generate(token_request())
    bench.read()
    return bench


def test_a_request_goes_on_where_the_last_life_ended_with_its_tokens_text_and_age() -> None:
    bench = begun()
    bench.text(100, 0, (50, 51), 0, "ab")
    bench.step()
    bench.die(seconds=2)
    bench.ready()
    (submission,) = bench.submissions()
    assert (submission.stream, submission.output_ids, submission.seniority_ms) == (STREAM, (50, 51), 2000)
    (opening,) = [each for body in bench.turn.detokenizer if isinstance(body, Open) for each in body.openings]
    assert (opening.output_ids, opening.characters) == ((50, 51), 2)
    bench.send(ALICE, Attach("r1", (Have(0, 0, 1, 1),)))
    bench.text(100, 2, (52,), 2, "c", end=End.LENGTH)
    bench.step()
    got = bench.read()
    assert [(each.start, each.ids, each.text) for each in deltas(got)] == [(1, (51, 52), "bc")]
    assert finishes(got)[0].output_tokens == 3
    assert finishes(got)[0].timings.total_ms == 2000


def test_nothing_leaves_before_it_is_on_record() -> None:
    bench = begun()
    bench.text(100, 0, (50,), 0, "a")
    told = bench.core.next_page(bench.now_ns)
    assert told is not None and told.parts[0].ids == (50,)
    bench.step()
    assert deltas(bench.read())
    assert bench.core.next_page(bench.now_ns) is None


def test_a_request_sent_again_after_the_death_is_the_same_request() -> None:
    bench = begun()
    bench.text(100, 0, (50,), 0, "a")
    bench.step()
    bench.die()
    bench.ready()
    bench.generate(token_request())
    got = bench.read()
    assert isinstance(got[0], Accepted) and got[0].request == 100
    assert deltas(got)[0].ids == (50,)
    assert not bench.submissions()
    assert bench.core.state.totals.accepted == 1


def test_an_answer_that_ended_is_neither_computed_nor_metered_again() -> None:
    bench = begun()
    bench.text(100, 0, (50,), 0, "a", end=End.STOP)
    bench.step()
    assert sum(each.output_tokens for each in bench.used.values()) == 1
    bench.die(seconds=1)
    bench.ready()
    assert not bench.submissions()
    bench.send(ALICE, Attach("r1"))
    bench.step()
    assert finishes(bench.read())[0].end is End.STOP
    assert not bench.used
    bench.send(ALICE, Acknowledge(("r1",)))
    bench.step()
    bench.die()
    assert bench.core.state.ledger.requests == {}


def test_what_was_only_tokenized_is_not_there_any_more() -> None:
    bench = Bench(journal=True)
    bench.generate(Generate("r1", prompt="hello"))
    bench.die()
    assert bench.core.state.ledger.requests == {}
    assert bench.database.count("requests") == 0


def test_deadlines_go_on_while_nobody_is_there() -> None:
    bench = Bench(journal=True)
    bench.generate(token_request(ttl_ms=5_000))
    bench.die(seconds=3)
    bench.ready()
    assert bench.submissions()[0].ttl_ms == 2_000
    bench.send(ALICE, Attach("r1"))
    bench.pass_time(2.1)
    assert finishes(bench.read())[0].end is End.DEADLINE


def test_a_client_that_does_not_come_back_is_waited_for_and_a_background_request_goes_on() -> None:
    bench = begun()
    bench.generate(token_request("r2", background=True))
    bench.die()
    bench.ready()
    bench.pass_time(14)
    assert bench.core.snapshot()["streams"] == 2
    bench.pass_time(2)
    assert bench.core.state.ledger.live.keys() == {101}


@pytest.mark.parametrize(("away_s", "going_on"), [(50, 1), (90, 0)])
def test_after_longer_than_the_retention_time_nothing_goes_on(away_s: int, going_on: int) -> None:
    bench = begun()
    bench.die(seconds=away_s)
    bench.ready()
    assert len(bench.submissions()) == going_on
    bench.send(ALICE, Attach("r1"))
    bench.step()
    ends = [each.end for each in finishes(bench.read())]
    assert ends == ([] if going_on else [End.CANCELLED])


def test_time_away_does_not_count_for_an_answer_that_waits_for_its_reader() -> None:
    bench = begun()
    bench.text(100, 0, (50,), 0, "a", end=End.STOP)
    bench.step()
    bench.pass_time(10)
    bench.die(seconds=45)
    bench.pass_time(45)
    bench.send(ALICE, Attach("r1"))
    bench.step()
    assert deltas(bench.read())[0].text == "a"


def test_another_model_ends_what_the_last_one_began() -> None:
    bench = begun()
    bench.core.state.ledger.live[100].model = "gone"
    bench.database.commit([])
    request = bench.core.state.ledger.live[100]
    body = journal_records.encode_request(request, CLOCK)
    bench.database._connection.execute("UPDATE requests SET body = ?", (body,))
    bench.die()
    bench.send(ALICE, Attach("r1"))
    bench.step()
    (finished,) = finishes(bench.read())
    assert finished.end is End.ERROR and "another model" in finished.detail


def test_a_tenants_quota_is_charged_once_and_its_concurrency_counts() -> None:
    limited = tenant("acme", tokens_per_minute=600, burst_tokens=100, concurrency_max=1)
    bench = Bench(journal=True, policy=policy(limited))
    bench.generate(token_request(credential="acme", max_tokens=17))
    assert bench.core.snapshot()["tenants"]["acme"]["tokens"] == 80  # type: ignore[index]  # a snapshot
    bench.read()
    bench.die(seconds=1)
    bench.ready()
    (acme,) = bench.core.state.tenants
    assert acme.bucket is not None and round(acme.bucket.level(bench.now_ns)) == 90
    bench.generate(token_request("r2", credential="acme", max_tokens=1))
    assert bench.rejection().code is Code.QUOTA
    bench.send(ALICE, Attach("r1", credential="acme"))
    bench.text(100, 0, (50,), 0, "a", end=End.STOP)
    bench.step()
    assert round(acme.bucket.level(bench.now_ns)) == 100
    assert acme.streams == 0


def test_counts_of_streams_survive_so_that_the_law_holds_in_every_life() -> None:
    bench = begun()
    bench.generate(token_request("r2", n=3))
    bench.text(100, 0, (50, 51), 0, "ab")
    bench.pass_time(0.02)
    bench.text(100, 2, (52,), 2, "c", end=End.STOP)
    bench.generate(token_request("r3", tokens=100))
    before = told(bench)
    for _ in range(3):
        bench.die()
        assert told(bench) == before
    (class_totals,) = bench.core.state.usage_counters.class_totals.values()
    assert (class_totals.accepted, class_totals.ended[End.STOP], class_totals.refused) == (
        4,
        1,
        {Code.CONTEXT_LENGTH: 1},
    )
    intervals = class_totals.of(StreamMeasure.INTERVAL)
    assert (class_totals.generated, intervals.count, intervals.total) == (3, 2, 20_000_000)


def test_what_a_life_that_was_killed_has_measured_goes_on_in_the_next() -> None:
    bench = begun()
    bench.pass_time(0.5)
    bench.text(100, 0, (50,), 0, "a")
    bench.step()
    bench.die(seconds=2)
    bench.ready()
    bench.text(100, 1, (51, 52), 1, "bc", end=End.LENGTH)
    bench.step()
    (class_totals,) = bench.core.state.usage_counters.class_totals.values()
    assert class_totals.of(StreamMeasure.FIRST_TOKEN).total == SECOND // 2
    assert class_totals.of(StreamMeasure.INTERVAL).total == class_totals.of(StreamMeasure.DECODE).total == 2 * SECOND
    assert class_totals.of(StreamMeasure.INTERVAL).count == 2
    assert class_totals.of(StreamMeasure.WHOLE, End.LENGTH).total == 5 * SECOND // 2
    values = {each.metric.name: each for each in ClassMetrics(bench.core.state, 10).values() if each.counts}
    whole = values[instruments.STREAM_TIME.name]
    assert (whole.number, sum(whole.counts)) == (2.5, 1)
    assert whole.counts[instruments.STREAM_TIME.bounds.index(2.5)] == 1


def test_measures_of_a_life_with_other_buckets_keep_their_number() -> None:
    bench = begun()
    bench.pass_time(0.5)
    bench.text(100, 0, (50,), 0, "a", end=End.STOP)
    bench.step()
    bench.die(bounds={StreamMeasure.FIRST_TOKEN: (1, 2)})
    (class_totals,) = bench.core.state.usage_counters.class_totals.values()
    first, whole = class_totals.of(StreamMeasure.FIRST_TOKEN), class_totals.of(StreamMeasure.WHOLE, End.STOP)
    assert (first.counts, whole.counts) == ([0, 0, 1], [1])


def test_a_journal_knows_since_when_it_counts() -> None:
    bench = begun()
    assert bench.journal is not None
    began = bench.journal.began_unix_ns()
    bench.die(seconds=30)
    assert bench.journal.began_unix_ns() == began == CLOCK.wall(1_000 * SECOND)
    bench.journal.clear()
    bench.die()
    assert bench.journal.began_unix_ns() > began
    assert not bench.core.state.usage_counters.class_totals


def test_accounts_keep_the_order_in_which_they_were_first_heard_of() -> None:
    bench = Bench(journal=True, policy=policy(tenant("zoe"), tenant("acme")))
    for number, name in enumerate(("zoe", "acme", "zoe")):
        bench.generate(token_request(f"r{number}", credential=name, traffic_class=("batch", "standard")[number % 2]))
        if number == 1:
            bench.die()
            bench.ready()
    for _ in range(2):
        assert [each.tenant for each in bench.core.state.usage_counters.class_totals if each.tenant] == ["zoe", "acme"]
        bench.die()


def test_a_fold_keeps_what_earlier_pages_counted_of_others() -> None:
    bench = Bench(journal=True, policy=policy(tenant("acme"), tenant("beta")), context_tokens=2000)
    bench.capacity(largest=2000)
    bench.generate(token_request("r1", credential="acme"))
    bench.generate(token_request("r2", credential="beta", max_tokens=1900))
    assert len(bench.read()) == 2
    assert len(bench.core.state.ledger.live) == 2
    bench.text(100, 0, (50, 51), 0, "ab", end=End.STOP)
    bench.step()
    for position in range(2 * PAGES_PER_FOLD + 5):
        bench.text(101, position, (position % 30,), position, "a")
        bench.step()
    before = told(bench)
    bench.die()
    assert told(bench) == before


def test_refusals_alone_are_folded_now_and_then() -> None:
    bench = begun(requests_max=1)
    for number in range(PAGES_PER_FOLD + 5):
        bench.generate(token_request(f"x{number}"), BOB)
    assert 0 < bench.database.count("pages") < 10
    before = told(bench)
    bench.die()
    assert told(bench) == before


def test_times_count_from_the_receipt_and_from_token_to_token() -> None:
    bench = Bench(journal=True)
    bench.generate(Generate("r1", prompt="hello", sampling=Sampling(max_tokens=9)))
    bench.pass_time(0.3)
    bench.tokenized(100)
    bench.step()
    for position, seconds in enumerate((0.5, 0.1, 0.2)):
        bench.pass_time(seconds)
        bench.text(100, position, (50,), position, "a", end=End.STOP if position == 2 else 0)
    bench.step()
    (class_totals,) = (each for account, each in bench.core.state.usage_counters.class_totals.items() if account.tenant)
    found = {series.measure: each.total / SECOND for series, each in class_totals.measured.items()}
    assert found[StreamMeasure.FIRST_TOKEN] == pytest.approx(0.8)
    assert found[StreamMeasure.PREFILL] == pytest.approx(0.5)
    assert found[StreamMeasure.INTERVAL] == found[StreamMeasure.DECODE] == pytest.approx(0.3)
    assert found[StreamMeasure.WHOLE] == pytest.approx(1.1)
    assert class_totals.of(StreamMeasure.INTERVAL).count == 2


def test_the_delay_of_a_reclaim_and_prompts_are_counted_over_lives() -> None:
    bench = begun()
    bench.send(ALICE, Cancel("r1"))
    bench.from_peer(Reclaims((Reclaimed(STREAM, 3, 1, 900),)))
    bench.step()
    for _ in range(2):
        (class_totals,) = bench.core.state.usage_counters.class_totals.values()
        assert (class_totals.reclaim_us_max, class_totals.of(StreamMeasure.RECLAIM).total) == (900, 900_000)
        assert class_totals.prompt_tokens == 3
        bench.die()


def test_times_of_a_part_are_read_on_the_readers_clock() -> None:
    part = JournalPart(
        1, 0, 0, 0, (5,), 0, "a", first_token_ns=7 * SECOND, end=1, ended_ns=9 * SECOND, last_token_ns=8 * SECOND
    )
    later = journal_records.WallClockOffset(CLOCK.offset_ns + 5 * SECOND)
    written_ns, (read,), counted = journal_records.decode_parts(
        journal_records.encode_parts((part,), 9 * SECOND, CLOCK), later
    )
    assert (written_ns, counted) == (4 * SECOND, [])
    assert (read.first_token_ns, read.ended_ns, read.last_token_ns) == (2 * SECOND, 4 * SECOND, 3 * SECOND)


def told(bench: Bench) -> list[MetricValue]:
    """What is told of counts and measures."""
    present = (MetricKind.COUNTER, MetricKind.HISTOGRAM)
    return [each for each in ClassMetrics(bench.core.state, 10).values() if each.metric.kind in present]


def test_a_full_disk_lets_streams_go_on_and_turns_new_requests_away_until_there_is_room() -> None:
    bench = begun()
    bench.database.full = True
    bench.text(100, 0, (50,), 0, "a")
    bench.send(BOB, token_request("r2"))
    bench.step()
    assert deltas(bench.read())[0].text == "a"
    assert [each.end for each in finishes(bench.read(BOB))] == [End.SHED]
    bench.generate(token_request("r3"), BOB)
    assert bench.rejection(BOB).code is Code.OVERLOADED
    bench.text(100, 1, (51,), 1, "b")
    bench.step()
    bench.database.full = False
    bench.pass_time(1)
    bench.generate(token_request("r4"), BOB)
    assert isinstance(bench.read(BOB)[0], Accepted)
    bench.die()
    assert list(bench.core.state.ledger.live[100].choices[0].ids) == [50, 51]
    assert bench.core.state.ledger.live.keys() == {100, 102}


def test_an_attempt_that_goes_back_is_read_back_as_it_stands_now() -> None:
    bench = begun()
    bench.text(100, 0, (50, 51, 52), 0, "abc")
    bench.step()
    bench.from_peer(Texts((TextRun(STREAM, 1, 1, (60,), 1, "x"),)))
    bench.step()
    for _ in range(2):
        bench.die()
        (choice,) = bench.core.state.ledger.live[100].choices
        assert (choice.attempt, list(choice.ids), choice.text.since(0)) == (1, [50, 60], "ax")


def test_the_log_is_folded_and_everything_of_a_request_is_deleted_when_it_is_forgotten() -> None:
    bench = begun()
    for position in range(PAGES_PER_FOLD + 5):
        bench.text(100, position, (position % 30,), position, "a")
        bench.step()
    assert 0 < bench.database.count("pages") < 10
    assert bench.database.count("pieces") == 1
    bench.generate(token_request("r2"))
    bench.text(100, PAGES_PER_FOLD + 5, (), PAGES_PER_FOLD + 5, "", end=End.LENGTH)
    bench.step()
    bench.send(ALICE, Acknowledge(("r1",)))
    bench.step()
    assert bench.database.count("pieces") == 0 and bench.database.count("requests") == 1
    bench.pass_time(6)
    assert bench.database.count("pages") == 0


def test_nothing_is_left_on_disk_when_nobody_is_there() -> None:
    bench = begun()
    bench.text(100, 0, (50,), 0, "a", end=End.STOP)
    bench.step()
    bench.send(ALICE, Acknowledge(("r1",)))
    bench.step()
    bench.step()
    assert [bench.database.count(table) for table in ("requests", "pieces", "pages")] == [0, 0, 0]


def test_a_drain_with_a_journal_leaves_unfinished_requests_to_the_next_life() -> None:
    bench = begun()
    bench.core.stop_journaling()
    bench.core.state.drain_ns = bench.now_ns
    bench.step()
    assert finishes(bench.read())[0].end is End.SHED
    bench.die()
    assert bench.core.state.ledger.live.keys() == {100}


def test_every_field_of_a_request_is_on_record() -> None:
    choices = [ChoiceRecord(Stream(7, 0), Sampling(seed=1, max_tokens=3)), ChoiceRecord(Stream(7, 1), Sampling(seed=2))]
    request = Request(
        7, RequestKey("acme", "r"), "client-x", b"digest", "small", Sampling(stop=("x",)), 2, 5, "00-trace", "batch", SECOND,
        deadline_first_ns=2 * SECOND, deadline_ns=3 * SECOND, characters=9, stage=RequestStage.LIVE, accepted_ns=4 * SECOND,
        prompt=array("i", [1, 2]), prompt_tokens=2, end_ids=(2,), choices=choices, unfinished=2, keep=True,
        background=True, grace_ns=6, reserved_tokens=11,
    )  # fmt: skip
    later = journal_records.WallClockOffset(CLOCK.offset_ns + 5 * SECOND)
    read = journal_records.decode_request(7, journal_records.encode_request(request, CLOCK), later)
    derived = {"stage", "unfinished", "preview", "choices"}
    for field in dataclasses.fields(Request):
        kept, back = getattr(request, field.name), getattr(read, field.name)
        if field.name in ("received_ns", "accepted_ns", "deadline_first_ns", "deadline_ns"):
            assert back == kept - 5 * SECOND, field.name
        elif field.name not in derived:
            assert back == kept, field.name
            assert kept not in (0, False, "", b"", ()), f"{field.name} is not tried"
    assert [(each.stream, each.sampling) for each in read.choices] == [(each.stream, each.sampling) for each in choices]


def test_log_probabilities_are_on_record() -> None:
    bench = Bench(journal=True)
    bench.generate(token_request(logprobs=1))
    told = (Logprobs(-0.5, b"a", 0),)
    bench.from_peer(Texts((TextRun(STREAM, 0, 0, (50,), 0, "a", logprobs=told),)))
    bench.step()
    bench.die()
    assert bench.core.state.ledger.live[100].choices[0].logprobs == list(told)


@pytest.mark.parametrize("seed", range(8))
def test_any_history_reads_back_as_it_was(seed: int) -> None:
    draw = random.Random(seed)
    bench = Bench(journal=True, requests_max=50, context_tokens=10_000)
    for turn in range(300):
        if draw.random() < 0.1:
            bench.send(ALICE, token_request(f"r{turn}", n=draw.randint(1, 3), max_tokens=500))
        live = [choice for _, choice in bench.core.state.unfinished()]
        for choice in draw.sample(live, min(len(live), draw.randint(0, 3))):
            start, count = len(choice.ids), draw.randint(0, 4)
            end = End.STOP if draw.random() < 0.05 else 0
            attempt = choice.attempt
            if draw.random() < 0.05:
                start, attempt = draw.randint(0, start), attempt + 1
            ids = tuple(draw.randrange(900) for _ in range(count))
            bench.from_peer(Texts((TextRun(choice.stream, attempt, start, ids, start, "x" * count, end),)))
        if draw.random() < 0.1:
            bench.send(ALICE, Acknowledge((f"r{draw.randint(0, turn)}",)))
        bench.database.full = draw.random() < 0.05
        bench.step()
        if draw.random() < 0.05:
            bench.database.full = False
            bench.pass_time(0.3)
            before = streams_and_totals(bench)
            bench.die()
            assert streams_and_totals(bench) == before
            bench.incarnations.clear()
            bench.ready()
            for request in list(bench.core.state.ledger.live.values()):
                bench.send(ALICE, Attach(request.key.id))
            bench.step()


def streams_and_totals(bench: Bench) -> object:
    """Everything that must be the same in the next life."""
    ledger = bench.core.state.ledger
    streams = {
        choice.stream: (
            choice.attempt,
            list(choice.ids),
            choice.text.since(0),
            choice.end,
            choice.first_token_ns,
            choice.last_token_ns,
        )
        for request in ledger.requests.values()
        for choice in request.choices
    }
    return streams, list(bench.core.state.usage_counters.class_totals.items())


def test_a_stream_that_ended_while_nobody_was_there_is_not_scheduled_again() -> None:
    bench = begun()
    bench.die()
    bench.apply(PeerJoined(Service.SCHEDULER))
    bench.apply(PeerJoined(Service.DETOKENIZER))
    bench.capacity()
    bench.text(100, 0, (50,), 0, "a", end=End.STOP)
    bench.step()
    assert bench.turn.scheduler == [Submit((), complete=True)]
    bench.send(ALICE, Attach("r1"))
    bench.step()
    got = bench.read()
    assert not [each for each in got if isinstance(each, Rejected)]
    assert finishes(got)[0].end is End.STOP
