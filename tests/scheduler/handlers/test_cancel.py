"""Withdrawal in every state: blocks are back within two steps, and batch mates have the tokens they have alone."""

import random
from collections.abc import Callable

import pytest
from fakes.desk import Desk, generated, stream, submission
from fakes.executor import geometry
from msgspec.structs import replace

from noria.proto.scheduling import Submission, Withdraw
from noria.services.scheduler.core.interface.settings import CoreSettings
from noria.services.scheduler.core.interface.traffic_rules import FairRules, TrafficClass
from noria.services.scheduler.core.state.request import Request, RequestStatus

RULES = FairRules(classes=(TrafficClass("standard", rank=1), TrafficClass("batch", rank=0, quantum_tokens=3)))
VICTIM = 5


def victim(desk: Desk) -> Request | None:
    """The request that is to be withdrawn."""
    return desk.core.state.requests.get(stream(VICTIM))


def of_state(state: RequestStatus, in_flight: int) -> Callable[[Desk], bool]:
    """In this state with so many steps in flight."""

    def reached(desk: Desk) -> bool:
        request = victim(desk)
        return request is not None and request.state is state and request.in_flight == in_flight

    return reached


def waits_after_preemption(desk: Desk) -> bool:
    request = victim(desk)
    return (
        request is not None
        and request.state is RequestStatus.WAITING
        and request.work.preempted_at >= 0
        and not request.cache.host
    )


def waits_with_a_step_in_flight(desk: Desk) -> bool:
    request = victim(desk)
    return request is not None and request.state is RequestStatus.WAITING and request.in_flight > 0


def on_the_host(desk: Desk) -> bool:
    request = victim(desk)
    return request is not None and request.cache.host is not None


def on_the_way_to_the_host(desk: Desk) -> bool:
    memory = desk.core.state.memory
    return on_the_host(desk) and memory is not None and bool(memory.host._out)


def being_copied_to_the_host(desk: Desk) -> bool:
    return on_the_host(desk) and any(plan.swap_out for plan in desk.executor.queued)


def on_the_way_back(desk: Desk) -> bool:
    return any(plan.swap_in for plan in desk.executor.queued) and of_state(RequestStatus.DECODING, 1)(desk)


def waits_for_a_twin(desk: Desk) -> bool:
    return victim(desk) is not None and desk.passed_over > 0


def finished_with_a_step_in_flight(desk: Desk) -> bool:
    request = victim(desk)
    return request is not None and request.state is RequestStatus.FINISHED and request.in_flight > 0


def mates(prompt: int = 9, output: int = 14) -> list[Submission]:
    """Two others that run with it all the time."""
    return [submission(number, prompt=prompt, output=output) for number in (1, 2)]


def plain(desk: Desk) -> list[Submission]:
    """Enough of everything."""
    return [*mates(), submission(VICTIM, prompt=20, output=6)]


def ending(desk: Desk) -> list[Submission]:
    """It is stopped by an end id with a step in flight."""
    ids = generated(submission(VICTIM, prompt=20, output=6))
    return [*mates(), submission(VICTIM, prompt=20, output=6, end_ids=(ids[1],))]


def twin(desk: Desk) -> list[Submission]:
    """A mate computes the same prompt."""
    same = submission(1, prompt=40, output=9)
    return [same, replace(submission(VICTIM), prompt_ids=(*same.prompt_ids[:36], 30))]


def tight(desk: Desk) -> list[Submission]:
    """Not all fit."""
    return [submission(1, prompt=9, output=16), submission(VICTIM, prompt=8, output=16)]


def tiny(desk: Desk) -> list[Submission]:
    """One lacks a page while the other is in a step."""
    return [submission(1, prompt=4, output=4), submission(VICTIM, prompt=3, output=5)]


Case = tuple[str, Callable[[Desk], list[Submission]], Callable[[Desk], bool], int, int]
LARGE, SMALL, TINY = 256, 34, 6
PAGES = {LARGE: 4, SMALL: 1, TINY: 2}
CASES: list[Case] = [
    ("waiting for a slot", plain, of_state(RequestStatus.WAITING, 0), LARGE, 0),
    ("prefilling", plain, of_state(RequestStatus.PREFILLING, 0), LARGE, 0),
    ("prefilling in a step", plain, of_state(RequestStatus.PREFILLING, 1), LARGE, 0),
    ("prefilling in two steps", plain, of_state(RequestStatus.PREFILLING, 2), LARGE, 0),
    ("decoding", plain, of_state(RequestStatus.DECODING, 0), LARGE, 0),
    ("decoding in a step", plain, of_state(RequestStatus.DECODING, 1), LARGE, 0),
    ("decoding in two steps", plain, of_state(RequestStatus.DECODING, 2), LARGE, 0),
    ("draining", plain, of_state(RequestStatus.DRAINING, 1), LARGE, 0),
    ("finished with a step in flight", ending, finished_with_a_step_in_flight, LARGE, 0),
    ("waiting for a twin", twin, waits_for_a_twin, LARGE, 0),
    ("reset", tight, waits_after_preemption, SMALL, 0),
    ("reset with a step in flight", tiny, waits_with_a_step_in_flight, TINY, 0),
    ("on the host", tight, on_the_host, SMALL, 64),
    ("to be copied to the host", tiny, on_the_way_to_the_host, TINY, 64),
    ("on the way to the host in a step in flight", tight, being_copied_to_the_host, SMALL, 64),
    ("on the way back from the host in a step in flight", tight, on_the_way_back, SMALL, 64),
]


def reach(case: Case, policy: str) -> tuple[Desk, list[Submission]]:
    """Plan and compute in some order until the victim is in the state."""
    name, build, reached, blocks, host = case
    settings = CoreSettings(
        policy=policy, rules=RULES, max_batch_tokens=12, safety_margin=0.0, max_requests_per_batch=3
    )
    shape = geometry(num_blocks=blocks, page_size=PAGES[blocks], host_slots=host)
    for seed in range(100):
        draw, desk = random.Random(seed), Desk(settings, shape)
        asked = build(desk)
        desk.submit(*(replace(each, traffic_class="batch") for each in asked))
        for _ in range(200):
            if reached(desk):
                return desk, asked
            if desk.executor.queued and draw.random() < 0.5:
                desk.done()
            else:
                desk.plan()
    raise AssertionError(f"{name} is never reached")


@pytest.mark.parametrize("policy", ["fifo", "fair"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_a_withdrawn_request_gives_back_its_blocks_within_two_steps_and_disturbs_nobody(
    case: Case, policy: str
) -> None:
    desk, asked = reach(case, policy)
    done = desk.core.state.in_flight.done
    desk.tell(Withdraw((stream(VICTIM),)))
    assert victim(desk) is None
    while not desk.reclaims():
        desk.done()
        desk.plan()
    (reclaim,) = desk.reclaims()
    assert reclaim.stream == stream(VICTIM)
    assert reclaim.steps <= 2 and desk.core.state.in_flight.done - done <= 2
    desk.run()
    for each in asked:
        if each.stream != stream(VICTIM):
            assert desk.output(each.stream.request) == generated(each)
    cache = desk.core.state.cache
    assert cache is not None
    assert cache.available == cache.size
    assert desk.core.state.memory is not None and not any(desk.core.state.memory.host.used)
    assert desk.executor.slots == 0
