"""Many requests in a cache hardly larger than one of them: all are right, and little is computed twice."""

import random
from collections import deque

import pytest
from fakes.executor import EOS, FakeExecutor, alone, geometry

from noria.proto.base import Ended, Stream
from noria.proto.output import TokenRun
from noria.proto.sampling import Sampling
from noria.proto.scheduling import Submission, Submit
from noria.services.scheduler.core.interface.events import SchedulerEvent
from noria.services.scheduler.core.interface.settings import CoreSettings
from noria.services.scheduler.core.interface.traffic_rules import FairRules, TrafficClass
from noria.services.scheduler.core.policy.class_usage import count_usage
from noria.services.scheduler.core.policy.policies import FairPolicy
from noria.services.scheduler.core.scheduler import Scheduler
from noria.services.scheduler.core.state.counters import SchedulerCounters

REQUESTS = 2000
AT_A_TIME = 16
PAGE = 4
PROMPT_MAX = 48
OUTPUT_MAX = 48
FIFO = CoreSettings(max_requests_per_batch=AT_A_TIME, max_batch_tokens=32)
CLASSES = FairRules(
    classes=(
        TrafficClass("interactive", rank=2, weight=4.0, reserved_slots=4, reserved_cache=0.2, preemptible=False),
        TrafficClass("standard", rank=1, weight=2.0),
        TrafficClass("batch", rank=0, quantum_tokens=12),
        TrafficClass("admin", rank=3, reserved_slots=2, reserved_cache=0.3, preemptible=False, isolated=True),
    )
)


def submissions(draw: random.Random, requests: int) -> deque[Submission]:
    """Prompts that share nothing, so that only what preemption leaves in the cache can help."""
    return deque(
        Submission(
            stream=Stream(number, 0),
            attempt=0,
            prompt_ids=tuple(draw.randrange(1, 32) for _ in range(draw.randrange(4, PROMPT_MAX + 1))),
            sampling=Sampling(seed=number, max_tokens=draw.randrange(1, OUTPUT_MAX + 1)),
            end_ids=(EOS,) if draw.random() < 0.3 else (),
            traffic_class=("interactive", "standard", "batch", "admin")[number % 4],
            tenant=f"tenant {number % 3}",
        )
        for number in range(requests)
    )


def served(
    seed: int, host_share: float, settings: CoreSettings = FIFO, requests: int = REQUESTS, check_every: int = 500
) -> tuple[SchedulerCounters, int]:
    """Run all; returns the counters and how many tokens were served, prompt and output."""
    pages = (PROMPT_MAX + OUTPUT_MAX) // PAGE
    shape = geometry(
        num_blocks=pages * 3 // 2 + 2, page_size=PAGE, max_slots=AT_A_TIME, host_slots=int(pages * host_share)
    )
    core, executor = Scheduler(settings), FakeExecutor(shape)
    waiting = submissions(random.Random(seed), requests)
    alive: dict[Stream, tuple[Submission, list[int]]] = {}
    tokens = now_ns = 0
    core.apply(SchedulerEvent(0, shape))
    while waiting or alive:
        now_ns += 1_000_000
        while waiting and len(alive) < AT_A_TIME:
            each = waiting.popleft()
            alive[each.stream] = (each, [])
            core.apply(SchedulerEvent(now_ns, Submit((each,))))
        while (plan := core.plan(now_ns)) is not None:
            executor.send(plan)
        assert executor.queued, "the core hangs"
        for reply in core.apply(SchedulerEvent(now_ns, executor.step())):
            if not isinstance(reply, TokenRun):
                continue
            each, output = alive[reply.stream]
            assert reply.start == len(output)
            output += reply.ids
            if reply.end:
                assert output == alone(each.prompt_ids, each.sampling, each.end_ids, each.sampling.max_tokens or 0)
                tokens += len(each.prompt_ids) + len(output)
                del alive[reply.stream]
                core.apply(SchedulerEvent(now_ns, Ended((reply.stream,))))
        if executor.computed % check_every == 0:
            core.check()
            if isinstance(core.state.policy, FairPolicy):
                state = core.state
                count_usage(
                    core.state.policy,
                    state.cache,
                    state.slots.count,
                    decoding=state.decoding,
                    prefilling=state.prefilling,
                ).check()
    return core.state.counters, tokens


@pytest.mark.parametrize(("host_share", "recomputed_most"), [(0.0, 0.25), (4.0, 0.02)])
def test_in_a_pool_of_one_and_a_half_times_the_largest_little_is_computed_twice(
    host_share: float, recomputed_most: float
) -> None:
    counters, tokens = served(1, host_share)
    assert counters.resets + counters.swaps_out > 20, "the pool is too large for this test"
    assert counters.recomputed_tokens < recomputed_most * tokens


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize(("host_share", "recomputed_most"), [(0.0, 1.0), (4.0, 0.05)])
def test_with_classes_of_all_kinds_nobody_is_stuck_or_wrong_there(
    steps: int, host_share: float, recomputed_most: float
) -> None:
    settings = CoreSettings(
        policy="fair", rules=CLASSES, max_requests_per_batch=AT_A_TIME, max_batch_tokens=32, steps_in_flight=steps
    )
    counters, tokens = served(2, host_share, settings, requests=250, check_every=2)
    assert counters.resets + counters.swaps_out > 20
    assert counters.recomputed_tokens < recomputed_most * tokens
