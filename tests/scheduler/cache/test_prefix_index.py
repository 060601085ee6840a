"""Which pages are shared, between whom, and which are given up."""

import pytest
from fakes.desk import Desk, generated, stream, submission
from fakes.executor import geometry, hybrid
from msgspec.structs import replace

from noria.proto.base import Stream
from noria.proto.execution import Failure, Slice
from noria.proto.scheduling import Submission, Withdraw
from noria.services.scheduler.core.cache import request_blocks
from noria.services.scheduler.core.cache.prefix_index import PrefixIndex
from noria.services.scheduler.core.cache.request_blocks import Prefix
from noria.services.scheduler.core.interface.events import ExecutorLost
from noria.services.scheduler.core.interface.settings import CoreSettings

BEGINNING = tuple(range(1, 13))


def asking(
    number: int, prompt: tuple[int, ...] = BEGINNING, output: int = 3, *, choice: int = 0, salt: bytes = b""
) -> Submission:
    """A stream with this prompt."""
    plain = submission(number, 1, output)
    return replace(plain, stream=Stream(number, choice), prompt_ids=prompt, salt=salt)


def tables(desk: Desk, number: int) -> tuple[int, ...]:
    """The first group's blocks with which a stream was last filled."""
    fills = [fill for plan in desk.plans for fill in plan.fill if fill.stream.request == number]
    return fills[-1].blocks[0]


def cached(desk: Desk, number: int) -> int:
    return desk.runs(number)[0].cached_tokens


def test_a_prompt_that_was_computed_before_is_not_computed_again() -> None:
    desk = Desk()
    desk.submit(asking(1))
    desk.run()
    desk.submit(asking(2, (*BEGINNING, 30, 31)))
    plan = desk.planned()
    assert plan.slices == (Slice(0, 12, 2, False, True),)
    assert tables(desk, 2)[:3] == tables(desk, 1)
    desk.run()
    assert (cached(desk, 1), cached(desk, 2)) == (0, 12)
    assert desk.output(2) == generated(asking(2, (*BEGINNING, 30, 31)))


@pytest.mark.parametrize(("length", "found"), [(3, 0), (4, 0), (5, 4), (8, 4), (9, 8), (12, 8)])
def test_at_least_one_token_is_computed(length: int, found: int) -> None:
    desk = Desk()
    desk.submit(asking(1))
    desk.run()
    desk.submit(asking(2, BEGINNING[:length]))
    desk.run()
    assert cached(desk, 2) == found
    assert desk.output(2) == generated(asking(2, BEGINNING[:length]))


def test_generated_tokens_are_found_too() -> None:
    desk = Desk()
    first = asking(1, output=9)
    desk.submit(first)
    desk.run()
    longer = (*BEGINNING, *generated(first))
    desk.submit(asking(2, longer))
    desk.run()
    assert cached(desk, 2) == 20


def test_nothing_is_found_before_the_step_that_computes_it_is_done() -> None:
    desk = Desk(CoreSettings(max_batch_tokens=64))
    desk.submit(asking(1, output=9))
    desk.planned()
    index = desk.core.state.cache and desk.core.state.cache.index
    assert index is not None
    assert len(index) == 0
    desk.done()
    assert len(index) == 3


def test_a_twin_waits_for_the_prompt_that_is_being_computed_and_then_shares_it() -> None:
    desk = Desk(CoreSettings(max_batch_tokens=7))
    desk.submit(asking(1), asking(2, (*BEGINNING, 30)), asking(3, (9, 9, 9), 5))
    desk.run()
    assert (cached(desk, 1), cached(desk, 2)) == (0, 12)
    assert [fill.stream.request for plan in desk.plans for fill in plan.fill] == [1, 3, 2]
    assert desk.output(2) == generated(asking(2, (*BEGINNING, 30)))


def test_a_twin_that_waits_holds_neither_slot_nor_blocks() -> None:
    desk = Desk(CoreSettings(max_batch_tokens=64))
    desk.submit(asking(1), asking(2))
    desk.planned()
    board = desk.core.state
    assert (board.running, desk.passed_over, board.slots.free) == (1, 1, 7)


@pytest.mark.parametrize("how", ["withdrawn", "failed step", "lost executor"])
def test_who_waits_for_a_twin_that_is_gone_computes_for_itself(how: str) -> None:
    desk = Desk(CoreSettings(max_batch_tokens=64, steps_in_flight=1))
    desk.submit(asking(1), asking(2))
    desk.planned()
    assert desk.passed_over == 1
    match how:
        case "withdrawn":
            desk.tell(Withdraw((stream(1),)))
        case "failed step":
            desk.tell(desk.executor.fail(Failure.ERROR))
        case _:
            desk.tell(ExecutorLost())
            desk.executor = type(desk.executor)(desk.executor.geometry)
            desk.tell(desk.executor.geometry)
    desk.run()
    assert desk.output(2) == generated(asking(2))


def test_a_twin_that_is_preempted_is_waited_for_no_longer() -> None:
    desk = Desk(
        CoreSettings(safety_margin=0.0, max_batch_tokens=4, steps_in_flight=1), geometry(num_blocks=9, page_size=4)
    )
    # It takes the block that the twin was promised, when the twin's chunk has got half of what it wants.
    older = submission(9, prompt=14, output=10)
    desk.submit(older)
    while not desk.core.state.decoding:
        desk.planned()
        desk.done()
    longer = asking(2, (*BEGINNING, 30))
    desk.submit(asking(1), longer)
    passed_over = set()
    for _ in range(200):
        if desk.plan() is None:
            break
        desk.done()
        passed_over.add((desk.passed_over, desk.core.state.counters.resets))
    assert {(1, 0), (0, 1)} <= passed_over
    for each in (older, asking(1), longer):
        assert desk.output(each.stream.request) == generated(each)


def test_all_choices_of_a_request_share_its_prompt() -> None:
    desk = Desk()
    desk.submit(*(asking(1, (*BEGINNING, 13), choice=choice) for choice in range(4)))
    desk.run()
    filled = [fill for plan in desk.plans for fill in plan.fill]
    assert len({fill.blocks[0][:3] for fill in filled}) == 1
    assert len({fill.blocks[0][3] for fill in filled}) == 4
    assert desk.core.state.counters.hit_tokens == 3 * 12


def test_two_tenants_never_share_and_neither_sees_the_other() -> None:
    def plans(*others: Submission) -> tuple[list[object], list[int]]:
        desk = Desk(CoreSettings(max_requests_per_batch=1))
        for each in (*others, asking(1, salt=b"one"), asking(2, (*BEGINNING, 30), salt=b"one")):
            desk.submit(each)
            desk.run()
        own = [
            (each.start, each.length)
            for plan in desk.plans
            for fill in plan.fill
            if fill.stream.request < 3
            for each in plan.slices
        ]
        return list(own), [cached(desk, 1), cached(desk, 2)]

    alone, beside = plans(), plans(asking(3, salt=b"two"))
    assert alone == beside
    assert alone[1] == [0, 12]


def test_two_streams_that_complete_the_same_page_keep_one_of_it() -> None:
    desk = Desk(shape=geometry(page_size=4))
    desk.submit(asking(1, (5, 6, 7), 9), replace(asking(2, (5, 6, 7), 9), sampling=asking(1, output=9).sampling))
    desk.run()
    assert desk.output(1) == desk.output(2)
    merged = [each for plan in desk.plans for each in plan.replace]
    assert [(each.group, each.index) for each in merged] == [(0, 0), (0, 1)]
    assert desk.core.state.counters.merged_pages >= 2
    cache = desk.core.state.cache
    assert cache is not None
    assert cache.available == cache.size


def test_a_page_with_other_ids_under_the_same_key_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    class Same:
        def __init__(self, *_: object, **__: object) -> None:
            pass

        def digest(self) -> bytes:
            return b"the same for all"

    monkeypatch.setattr(request_blocks, "blake2b", Same)
    desk = Desk()
    for number in (1, 2, 3):
        each = asking(number, tuple(range(number, number + 14)), 6)
        desk.submit(each)
        desk.run()
        assert desk.output(number) == generated(each)
    assert desk.core.state.counters.hit_tokens == 0


def test_equal_pages_after_different_beginnings_have_different_keys() -> None:
    keys = {Prefix(salt, (*head, 1, 2), [], 2).key(1) for salt in (b"", b"x") for head in ((3, 4), (4, 3))}
    assert len(keys) == 4
    assert all(len(key) * 8 == 256 for key in keys)


def test_keys_do_not_depend_on_where_the_prompt_ends() -> None:
    whole = Prefix(b"", (1, 2, 3, 4, 5), [], 2)
    for cut in range(6):
        assert Prefix(b"", (1, 2, 3, 4, 5)[:cut], [1, 2, 3, 4, 5][cut:], 2).key(1) == whole.key(1)


@pytest.mark.parametrize("shared", [True, False])
def test_sharing_can_be_turned_off(shared: bool) -> None:
    desk = Desk(CoreSettings(allow_block_sharing=shared))
    for number in (1, 2):
        desk.submit(asking(number))
        desk.run()
    assert cached(desk, 2) == (8 if shared else 0)


def test_where_a_layer_slides_nothing_is_shared() -> None:
    desk = Desk(shape=geometry(kinds=hybrid(4, 4, 64)))
    for number in (1, 2):
        desk.submit(asking(number))
        desk.run()
    assert (cached(desk, 2), desk.output(2)) == (0, generated(asking(2)))


def test_freed_pages_are_kept_until_blank_blocks_run_out_and_then_go_one_by_one() -> None:
    desk = Desk(CoreSettings(safety_margin=0.0), geometry(num_blocks=12, page_size=4))
    desk.submit(asking(1, output=1))
    desk.run()
    evicted = []
    for number in range(2, 6):
        desk.submit(asking(number, tuple(range(number, number + 12)), 1))
        desk.run()
        evicted.append(desk.core.state.counters.evictions)
    assert evicted == [0, 0, 2, 5]
    desk.submit(asking(9, (*tuple(range(5, 17)), 20), 1))
    desk.run()
    assert cached(desk, 9) == 12


def chain(index: PrefixIndex, ids: tuple[int, ...], first_block: int) -> list[request_blocks.Page]:
    """Publish a prefix of pages of one token, as a holding of its own."""
    prefix = Prefix(b"", (*ids, 0), [], 1)
    found = list(index.find(prefix))
    index.use(found)
    for number in range(len(found), len(ids)):
        page = index.publish(prefix, number, found[-1] if found else None, (first_block + number,))
        assert page is not None
        found.append(page)
    return found


def test_the_least_recently_used_goes_first_and_never_a_page_before_those_that_follow_it() -> None:
    index = PrefixIndex()
    held = [chain(index, ids, 10 * number) for number, ids in enumerate([(1, 2, 3), (1, 2, 4), (5, 6)])]
    for each in held:
        index.leave(each)
    again = chain(index, (1, 2, 3), 90)
    index.check([again])
    assert again == held[0]
    index.leave(again)
    index.check([])
    assert [index.evict().ids for _ in range(6)] == [(4,), (6,), (5,), (3,), (2,), (1,)]


def test_pages_in_use_are_not_given_up() -> None:
    index = PrefixIndex()
    used, left = chain(index, (1, 2), 0), chain(index, (1, 3), 10)
    assert index.shared == 1
    index.leave(left)
    assert index.cached == 1
    assert index.evict().ids == (3,)
    assert (index.cached, index.unused(used), index.sole(used)) == (0, 0, 2)


def test_pages_survive_a_failed_step_and_go_with_the_executor() -> None:
    desk = Desk(CoreSettings(steps_in_flight=1))
    desk.submit(asking(1))
    desk.run()
    desk.submit(asking(2, (*BEGINNING, 30), 4))
    desk.planned()
    desk.tell(desk.executor.fail(Failure.ERROR))
    assert desk.planned().slices == (Slice(0, 12, 1, False, True),)
    desk.run()
    desk.tell(ExecutorLost())
    desk.executor = type(desk.executor)(desk.executor.geometry)
    desk.tell(desk.executor.geometry)
    desk.submit(asking(3))
    desk.run()
    assert (cached(desk, 2), cached(desk, 3)) == (12, 0)


def test_each_prompt_token_counts_once_and_what_a_preemption_finds_again_apart() -> None:
    desk = Desk(CoreSettings(safety_margin=0.0, steps_in_flight=1), geometry(num_blocks=12, page_size=1, max_slots=2))
    first, second = submission(1, prompt=4, output=6), submission(2, prompt=4, output=5)
    desk.submit(first, second)
    desk.run()
    counters = desk.core.state.counters
    assert (counters.resets, counters.prompt_tokens, counters.hit_tokens) == (1, 8, 0)
    assert counters.recovered_tokens + counters.recomputed_tokens == counters.reset_tokens
