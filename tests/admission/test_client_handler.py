"""Questions about a request, who may ask and end it, and how long it goes on without a reader."""

from fakes.admission_bench import ALICE, BOB, Bench, deltas, finishes, policy, tenant, token_request

from noria.proto.base import End
from noria.proto.frontdoor import Attach, Cancel, Code, Inquire, Rejected, Standing


def begun(bench: Bench | None = None, **changes: object) -> tuple[Bench, int]:
    it = bench or Bench()
    it.generate(token_request("r1", **changes))  # type: ignore[arg-type]  # a test's shorthand
    return it, it.accepted().request


def standing(it: Bench, client: str = BOB, credential: str = "") -> Standing | Rejected:
    it.send(client, Inquire("q", "r1", credential))
    it.step()
    answer = it.read(client)[-1]
    assert isinstance(answer, Standing | Rejected) and answer.id == "q"
    return answer


def test_how_a_request_stands_is_told_without_taking_it_over() -> None:
    it, number = begun(background=True, n=2, stop=("no",))
    it.text(number, 0, (5, 6), 0, "xy", choice=1)
    it.pass_time(2)
    told = standing(it)
    assert told == Standing("q", "r1", True, 2000, "small", 3, (0, 2), (0, 0), ("no",))
    it.text(number, 2, (7,), 2, "z", choice=1, end=End.STOP)
    it.step()
    assert "".join(each.text for each in deltas(it.read())) == "xyz"
    ended = standing(it)
    assert isinstance(ended, Standing) and ended.ends == (0, End.STOP)


def test_nobody_learns_of_another_tenants_request_or_ends_it() -> None:
    it, _ = begun(Bench(policy=policy(tenant("acme"), tenant("beta"))), background=True, credential="acme")
    for credential, code in (("beta", Code.NOT_FOUND), ("nobody", Code.UNAUTHORIZED)):
        told = standing(it, credential=credential)
        assert isinstance(told, Rejected) and told.code is code
        it.send(BOB, Cancel("r1", credential=credential))
        it.step()
    assert it.core.snapshot()["streams"] == 1


def test_whoever_has_the_credential_ends_a_background_request_though_another_reads_it() -> None:
    it, _ = begun(background=True)
    it.send(BOB, Inquire("q", "r1"))
    it.send(BOB, Cancel("r1"))
    it.step()
    assert [each.end for each in finishes(it.read())] == [End.CANCELLED]
    told = standing(it)
    assert isinstance(told, Standing) and told.ends == (End.CANCELLED,)


def test_a_foreground_request_is_not_ended_by_another_reader() -> None:
    it, _ = begun()
    it.send(BOB, Cancel("r1"))
    it.step()
    assert it.core.snapshot()["streams"] == 1


def test_a_request_that_may_be_asked_for_again_does_not_end_because_its_client_fell_silent() -> None:
    it, _ = begun(keep=True, grace_ms=1_000)
    it.pass_time(100)
    assert it.core.snapshot()["streams"] == 1
    it.generate(token_request("r1", keep=True, grace_ms=1_000), BOB)
    it.send(BOB, Cancel("r1", left=True))
    it.pass_time(2)
    assert it.core.snapshot()["streams"] == 0, "its reader was there and left"


def test_one_that_is_left_for_a_client_that_is_gone_is_not_ended_by_what_that_one_says_late() -> None:
    it, _ = begun(keep=True, grace_ms=1_000)
    it.pass_time(100)
    it.send(BOB, Cancel("r1", left=True))
    it.pass_time(10)
    assert it.core.snapshot()["streams"] == 1


def test_a_request_lives_on_for_its_own_grace_after_its_clients_silence() -> None:
    it, _ = begun(grace_ms=40_000)
    it.generate(token_request("r2", grace_ms=0), ALICE)
    it.pass_time(16)
    assert it.core.snapshot()["streams"] == 1
    it.pass_time(23)
    it.send(BOB, Attach("r1"))
    it.pass_time(10)
    assert it.core.snapshot()["streams"] == 1
    it.pass_time(31)
    assert it.core.snapshot()["streams"] == 0
