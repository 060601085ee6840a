"""Measures the scheduler core's time for a step (plan and apply) per running request, with many waiting.

Run: python benchmarks/scheduler_step.py [RUNNING] [WAITING]
Prints the median over steps, with one and with two steps in flight, for decodes alone, and for a steady state in which
requests end and others are admitted all the time; with and without sharing of prefixes, and for `fair` with three classes
of ten tenants each. Prompts share their first page.
"""

import gc
import statistics
import sys
import time

from noria.proto.base import Ended, Stream
from noria.proto.execution import Geometry, Group, Sampled, StepDone, StepPlan
from noria.proto.output import TokenRun
from noria.proto.sampling import Sampling
from noria.proto.scheduling import Submission, Submit
from noria.services.scheduler.core.interface.events import EventBody, SchedulerEvent
from noria.services.scheduler.core.interface.settings import CoreSettings
from noria.services.scheduler.core.interface.traffic_rules import FairRules, TrafficClass
from noria.services.scheduler.core.scheduler import Scheduler

STEPS = 300
RULES = FairRules(
    classes=(
        TrafficClass("interactive", rank=2, weight=4.0, reserved_slots=4, reserved_cache=0.1, preemptible=False),
        TrafficClass("standard", rank=1, weight=2.0),
        TrafficClass("batch", rank=0, quantum_tokens=512),
        TrafficClass("admin", rank=3, reserved_slots=1, reserved_cache=0.02, preemptible=False, isolated=True),
    )
)


class CoreBench:
    """A scheduler core, with an executor that answers every sampling slice with token 5."""

    def __init__(
        self, running: int, waiting: int, steps_in_flight: int, output_tokens: int, *, sharing: bool, policy: str
    ) -> None:
        self.core = Scheduler(
            CoreSettings(
                policy=policy,
                rules=RULES,
                max_batch_tokens=max(running * 2, 8192),
                max_requests_per_batch=running,
                steps_in_flight=steps_in_flight,
                queue_requests_max=1 << 30,
                queue_tokens_max=1 << 40,
                allow_block_sharing=sharing,
            )
        )
        self.now_ns = 0
        blocks = running * (output_tokens // 16 + 4) * 2
        self.apply(Geometry("bench", (Group(0, 1),), blocks, 2, 16, running, 1 << 16, 1 << 20, 50_000, "", ""))
        self.slots: dict[int, tuple[Stream, int]] = {}
        self.plans: list[tuple[StepPlan, StepDone]] = []
        self.next = 0
        self.output_tokens = output_tokens
        self.submit(running + waiting)

    def submit(self, count: int) -> None:
        """Submit streams whose lengths are spread, so that they do not all end together."""
        submissions = []
        for _ in range(count):
            self.next += 1
            maximum = self.output_tokens // 2 + self.next * 7919 % (self.output_tokens // 2 + 1)
            prompt = (*range(1, 17), *(self.next * 31 + each for each in range(16)))
            sampling = Sampling(max_tokens=maximum)
            traffic_class, tenant = RULES.classes[self.next % 3].name, f"tenant {self.next % 10}"
            submissions.append(
                Submission(Stream(self.next, 0), 0, prompt, sampling, (0,), tenant=tenant, traffic_class=traffic_class)
            )
        self.apply(Submit(tuple(submissions)))

    def apply(self, body: EventBody) -> list[Stream]:
        """Apply an event; return the streams that ended."""
        self.now_ns += 1_000_000
        replies = self.core.apply(SchedulerEvent(self.now_ns, body))
        return [each.stream for each in replies if isinstance(each, TokenRun) and each.end]

    def answer(self, plan: StepPlan) -> StepDone:
        """Return the executor's answer to a plan."""
        for fill in plan.fill:
            self.slots[fill.slot] = (fill.stream, len(fill.output_ids))
        sampled = []
        for each in plan.slices:
            if each.sample:
                stream, output = self.slots[each.slot]
                sampled.append(Sampled(stream, 0, output, (5,)))
                self.slots[each.slot] = (stream, output + 1)
        return StepDone(plan.epoch, plan.number, tuple(sampled), 1000)

    def step(self) -> tuple[float, int]:
        """Run one plan and its result; returns seconds spent in the core, and requests in the step."""
        begun = time.perf_counter()
        while (plan := self.core.plan(self.now_ns)) is not None:
            spent = time.perf_counter() - begun
            self.plans.append((plan, self.answer(plan)))
            begun = time.perf_counter() - spent
        spent = time.perf_counter() - begun
        plan, done = self.plans.pop(0)
        self.now_ns += 1_000_000
        event = SchedulerEvent(self.now_ns, done)
        begun = time.perf_counter()
        replies = self.core.apply(event)
        self.core.capacity()
        spent += time.perf_counter() - begun
        ended = tuple(each.stream for each in replies if isinstance(each, TokenRun) and each.end)
        if ended:
            self.apply(Ended(ended))
            self.submit(len(ended))
        return spent, len(plan.slices)


def measure(running: int, waiting: int, steps_in_flight: int, output_tokens: int, *, sharing: bool, policy: str) -> str:
    """Return the median microseconds per running request and step, as a line."""
    bench = CoreBench(running, waiting, steps_in_flight, output_tokens, sharing=sharing, policy=policy)
    for _ in range(10):
        bench.step()
    gc.collect()
    gc.freeze()
    costs = []
    for _ in range(STEPS):
        spent, requests = bench.step()
        costs.append(spent / max(1, requests) * 1e6)
    gc.unfreeze()
    deciles = statistics.quantiles(costs, n=10)
    return f"median {statistics.median(costs):5.2f} us, 90th percentile {deciles[8]:5.2f} us a running request"


def main() -> None:
    """Print the table."""
    running = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    waiting = int(sys.argv[2]) if len(sys.argv) > 2 else 10_000
    print(f"{running} running, {waiting} waiting, plan + apply + capacity, {STEPS} steps")
    for policy, sharing in (("fifo", True), ("fifo", False), ("fair", True), ("fair", False)):
        print(f" {policy}, {'with' if sharing else 'without'} prefix sharing")
        for steps_in_flight in (1, 2):
            for kind, output in (("decodes only", 4000), ("steady state", 64)):
                cost = measure(running, waiting, steps_in_flight, output, sharing=sharing, policy=policy)
                print(f"  {steps_in_flight} in flight, {kind}:  {cost}")


if __name__ == "__main__":
    main()
