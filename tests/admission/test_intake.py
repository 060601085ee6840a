"""From `Generate` to acceptance or refusal."""

import pytest
from fakes.admission_bench import ALICE, BOB, FIRST_NUMBER, Bench, deltas, finishes, token_request

from noria.proto.base import End, Service, Stream
from noria.proto.frontdoor import (
    Accepted,
    Acknowledge,
    Attach,
    Cancel,
    Code,
    Describe,
    Description,
    Generate,
    Have,
    Message,
    Ping,
    Pong,
)
from noria.proto.sampling import Sampling
from noria.proto.scheduling import Withdraw
from noria.services.admission.core.intake.effective_sampling import choice_seed, effective_seed
from noria.services.admission.core.state.events import DrainRequested, PeerLost


def test_token_ids_are_accepted_submitted_and_opened_in_the_turn_of_their_receipt() -> None:
    bench = Bench()
    bench.generate(token_request(tokens=3, max_tokens=5, stop_token_ids=(9,), stop=("x",), min_tokens=2))
    answer = bench.accepted()
    assert (answer.id, answer.request, answer.prompt_tokens, answer.model, answer.seed) == ("r1", 100, 3, "small", 7)
    (submission,) = bench.submissions()
    assert submission.stream == Stream(100, 0)
    assert submission.prompt_ids == (10, 11, 12)
    assert submission.end_ids == (9, 2)
    assert submission.has_stop_strings
    assert (submission.sampling.seed, submission.sampling.max_tokens) == (7, 5)
    assert bench.opened() == [Stream(100, 0)]


def test_without_a_length_a_request_gets_the_rest_of_the_context() -> None:
    bench = Bench()
    bench.capacity(largest=40)
    bench.generate(token_request(tokens=3))
    assert bench.submissions()[0].sampling.max_tokens == 37


def test_ignoring_end_of_sequence_leaves_only_the_stop_ids() -> None:
    bench = Bench()
    bench.generate(token_request(ignore_eos=True, stop_token_ids=(9, 9)))
    assert bench.submissions()[0].end_ids == (9,)


def test_choices_share_the_prompt_and_differ_in_seed() -> None:
    bench = Bench()
    bench.generate(token_request(n=3, seed=11))
    submissions = bench.submissions()
    assert [each.stream.choice for each in submissions] == [0, 1, 2]
    assert [each.sampling.seed for each in submissions] == [choice_seed(11, index) for index in range(3)]
    assert submissions[0].sampling.seed == 11
    assert len({each.sampling.seed for each in submissions}) == 3


@pytest.mark.parametrize("seed", [-1, -(2**63), 2**63, 2**64 - 1, 0, 2**63 - 1])
def test_any_64_bit_seed_becomes_one_that_every_integer_type_holds(seed: int) -> None:
    assert 0 <= effective_seed(seed) < 2**63
    assert effective_seed(seed) == effective_seed(seed)


@pytest.mark.parametrize(("given", "settled"), [(0.0, 0.0), (1e-9, 0.01), (0.01, 0.01), (1.5, 1.5)])
def test_a_tiny_temperature_is_clamped_and_zero_stays_greedy(given: float, settled: float) -> None:
    bench = Bench()
    bench.generate(token_request(temperature=given, top_k=-1))
    sampling = bench.submissions()[0].sampling
    assert (sampling.temperature, sampling.top_k) == (settled, 0)


@pytest.mark.parametrize(("given", "settled"), [(-1, 0), (0, 0), (1, 1), (999, 999), (1000, 0), (2**64 - 1, 0)])
def test_a_top_k_that_excludes_nothing_is_off_so_that_every_integer_type_holds_it(given: int, settled: int) -> None:
    bench = Bench()
    bench.generate(token_request(top_k=given))
    assert bench.submissions()[0].sampling.top_k == settled


def test_text_becomes_a_job_and_is_accepted_when_tokenized() -> None:
    bench = Bench()
    bench.generate(Generate("r1", messages=(Message("user", "hi"),)))
    (job,) = bench.turn.jobs
    assert (job.number, job.owner, job.messages) == (
        FIRST_NUMBER,
        f"default standard {ALICE}",
        (Message("user", "hi"),),
    )
    assert bench.read() == []
    bench.tokenized(FIRST_NUMBER, (4, 5))
    bench.step()
    assert bench.accepted().prompt_tokens == 2
    assert bench.submissions()[0].prompt_ids == (4, 5)
    assert bench.turn.jobs == []


def test_a_template_error_refuses_the_request_and_frees_its_id() -> None:
    bench = Bench()
    bench.generate(Generate("r1", prompt="x"))
    bench.tokenized(FIRST_NUMBER, problem="roles must alternate")
    bench.step()
    rejection = bench.rejection()
    assert (rejection.code, rejection.reason, rejection.parameter) == (Code.INVALID, "roles must alternate", "prompt")
    bench.generate(token_request("r1"))
    assert isinstance(bench.read()[0], Accepted)


@pytest.mark.parametrize(
    ("tokens", "changes", "code", "parameter"),
    [
        (63, {}, None, ""),
        (62, {"max_tokens": 2}, None, ""),
        (62, {"max_tokens": 3}, Code.CONTEXT_LENGTH, "max_tokens"),
        (62, {"min_tokens": 3}, Code.CONTEXT_LENGTH, "min_tokens"),
        (64, {}, Code.CONTEXT_LENGTH, "token_ids"),
    ],
)
def test_prompt_and_output_must_fit_the_context(
    tokens: int, changes: dict[str, int], code: Code | None, parameter: str
) -> None:
    bench = Bench()
    bench.generate(token_request(tokens=tokens, **changes))
    if code is None:
        bench.accepted()
    else:
        rejection = bench.rejection()
        assert (rejection.code, rejection.parameter) == (code, parameter)


def test_a_prompt_longer_than_the_cache_is_refused_even_within_the_context() -> None:
    bench = Bench()
    bench.capacity(largest=10)
    bench.generate(token_request("fits", tokens=9))
    bench.accepted()
    bench.generate(token_request("not", tokens=10))
    assert bench.rejection().code is Code.CONTEXT_LENGTH


@pytest.mark.parametrize("ids", [(), (1, 1000)])
def test_a_tokenizer_result_the_model_cannot_take_is_refused(ids: tuple[int, ...]) -> None:
    bench = Bench()
    bench.generate(Generate("r1", prompt="x"))
    bench.tokenized(FIRST_NUMBER, ids)
    bench.step()
    assert bench.rejection().code is Code.INVALID


def test_the_same_request_twice_is_one_request() -> None:
    bench = Bench()
    bench.generate(token_request())
    bench.text(100, 0, (50, 51), 0, "ab")
    bench.step()
    bench.read()
    bench.generate(token_request())
    again = bench.read()
    assert isinstance(again[0], Accepted)
    assert again[0].request == 100
    assert [(each.start, each.ids, each.text) for each in deltas(again)] == [(0, (50, 51), "ab")]
    assert bench.submissions() == []


def test_another_body_under_a_living_id_is_a_conflict() -> None:
    bench = Bench()
    bench.generate(token_request())
    bench.read()
    bench.generate(token_request(tokens=4))
    assert bench.rejection().code is Code.CONFLICT
    assert bench.core.snapshot()["requests"] == 1


def test_an_id_is_taken_while_its_prompt_is_tokenized() -> None:
    bench = Bench()
    bench.generate(Generate("r1", prompt="x"))
    bench.generate(Generate("r1", prompt="y"))
    assert bench.rejection().code is Code.CONFLICT
    bench.generate(Generate("r1", prompt="x"), BOB)
    bench.tokenized(FIRST_NUMBER)
    bench.step()
    assert bench.accepted(BOB).request == FIRST_NUMBER
    assert bench.read(ALICE) == []


@pytest.mark.parametrize(
    ("lost", "waiting_for"),
    [(Service.SCHEDULER, ("scheduler",)), (Service.DETOKENIZER, ("detokenizer",))],
)
def test_nothing_is_accepted_while_a_service_is_missing(lost: Service, waiting_for: tuple[str, ...]) -> None:
    bench = Bench()
    bench.apply(PeerLost(lost))
    bench.generate(token_request())
    rejection = bench.rejection()
    assert rejection.code is Code.NOT_READY
    assert rejection.retry_after_ms is not None
    bench.send(ALICE, Describe())
    bench.step()
    (answer,) = bench.read()
    assert isinstance(answer, Description)
    assert answer.waiting_for == waiting_for


def test_before_the_first_capacity_the_executor_is_waited_for() -> None:
    bench = Bench(ready=False)
    bench.send(ALICE, Describe())
    bench.step()
    assert bench.read() == [Description(("small", "smaller"), 64, ("scheduler", "detokenizer"), 1, True)]


def test_a_request_tokenized_after_the_scheduler_died_is_refused_as_not_ready() -> None:
    bench = Bench()
    bench.generate(Generate("r1", prompt="x"))
    bench.apply(PeerLost(Service.SCHEDULER))
    bench.tokenized(FIRST_NUMBER)
    bench.step()
    assert bench.rejection().code is Code.NOT_READY


def test_credit_counts_what_the_scheduler_has_not_seen_yet() -> None:
    bench = Bench()
    bench.capacity(requests=2)
    bench.generate(token_request("a"))
    bench.generate(Generate("b", prompt="x"))
    bench.read()
    bench.generate(token_request("c"))
    rejection = bench.rejection()
    assert rejection.code is Code.OVERLOADED
    assert rejection.retry_after_ms
    bench.capacity(submitted=1, requests=2)
    bench.generate(token_request("d"))
    assert isinstance(bench.read()[0], Accepted)


def test_prompt_tokens_need_credit_too() -> None:
    bench = Bench()
    bench.capacity(tokens=10)
    bench.generate(token_request("a", tokens=6))
    bench.accepted()
    bench.generate(token_request("b", tokens=5))
    assert bench.rejection().code is Code.OVERLOADED
    bench.generate(token_request("c", tokens=2, n=2))
    bench.accepted()


def test_a_new_scheduler_has_counted_nothing() -> None:
    bench = Bench()
    bench.generate(token_request("a"))
    bench.ready()
    assert [each.stream.request for each in bench.submissions()] == [100]
    bench.capacity(submitted=1, requests=1)
    bench.read()
    bench.generate(token_request("b"))
    bench.accepted()


def test_unfinished_requests_are_bounded() -> None:
    bench = Bench(requests_max=2)
    for name in ("a", "b"):
        bench.generate(token_request(name))
        bench.accepted()
    bench.generate(token_request("c"))
    assert bench.rejection().code is Code.OVERLOADED


def test_text_waiting_for_the_tokenizer_is_bounded() -> None:
    bench = Bench(tokenizing_characters_max=100)
    bench.generate(Generate("a", prompt="x" * 60))
    bench.generate(Generate("b", prompt="x" * 60))
    assert bench.rejection().code is Code.OVERLOADED
    bench.tokenized(FIRST_NUMBER)
    bench.generate(Generate("c", prompt="x" * 60))
    assert len(bench.turn.jobs) == 1


def test_a_draining_server_accepts_nothing_and_sheds_what_is_late() -> None:
    bench = Bench()
    bench.generate(token_request("a"))
    bench.apply(DrainRequested(bench.now_ns + 5_000_000_000))
    bench.read()
    bench.generate(token_request("b"))
    assert bench.rejection().code is Code.NOT_READY
    bench.pass_time(6)
    assert [each.end for each in finishes(bench.read())] == [End.SHED]


def test_a_cancelled_prompt_is_taken_back_from_the_tokenizer() -> None:
    bench = Bench()
    bench.generate(Generate("r1", prompt="x", n=2))
    bench.send(ALICE, Cancel("r1"))
    bench.step()
    assert bench.turn.abandoned == [FIRST_NUMBER]
    assert bench.turn.scheduler == []
    assert [(each.index, each.end) for each in finishes(bench.read())] == [(0, End.CANCELLED), (1, End.CANCELLED)]
    bench.tokenized(FIRST_NUMBER)
    bench.step()
    assert bench.turn.scheduler == []
    assert bench.idle()


def test_a_request_cancelled_in_the_turn_of_its_receipt_never_reaches_the_scheduler() -> None:
    bench = Bench()
    bench.send(ALICE, token_request())
    bench.send(ALICE, Cancel("r1"))
    bench.step()
    assert bench.turn.scheduler == []
    bench.capacity(requests=1)
    bench.generate(token_request("b"))
    assert bench.submissions()


def test_signs_of_life_are_answered_once_per_turn() -> None:
    bench = Bench()
    for _ in range(5):
        bench.send(ALICE, Ping())
    bench.step()
    assert bench.read() == [Pong()]


def test_too_many_clients_are_told() -> None:
    bench = Bench()
    for number in range(4096):
        bench.core.delivery.register(f"client-{number}", 1, bench.now_ns)
    assert not bench.send("client-late", Ping())


@pytest.mark.parametrize("body", [Cancel("nobody"), Cancel("nobody", 3), Acknowledge(("nobody", "x" * 1000))])
def test_what_names_unknown_requests_is_ignored(body: Cancel | Acknowledge) -> None:
    bench = Bench()
    bench.send(ALICE, body)
    bench.step()
    assert bench.read() == []


def test_attaching_to_nothing_is_answered() -> None:
    bench = Bench()
    bench.send(ALICE, Attach("nobody", (Have(0),)))
    bench.step()
    assert bench.rejection().code is Code.NOT_FOUND


def test_a_withdrawn_stream_is_withdrawn_before_it_is_ended() -> None:
    bench = Bench()
    bench.generate(token_request())
    bench.send(ALICE, Cancel("r1"))
    bench.step()
    kinds = [type(message).__name__ for message in bench.turn.scheduler]
    assert kinds == ["Withdraw", "Ended"]
    assert bench.turn.scheduler[0] == Withdraw((Stream(100, 0),), End.CANCELLED)


def test_a_seed_is_fixed_for_a_request_that_gives_none() -> None:
    bench = Bench()
    bench.send(ALICE, Generate("a", token_ids=(1,), sampling=Sampling()), seed=12345)
    bench.step()
    assert bench.accepted().seed == 12345
    assert bench.submissions()[0].sampling.seed == 12345
