"""What the executor computes, sends and forgets as schedulers come and go and steps fail: one row a story."""

from collections.abc import Callable
from typing import Any

import pytest
from fakes.sampling import drawn

from noria.proto.base import Stream
from noria.proto.execution import Copy, Failure, Fill, Slice, Stash, StepFailed, StepPlan
from noria.proto.sampling import Sampling
from noria.services.executor.plan.batch import Batch
from noria.services.executor.plan.limits import ExecutorLimits
from noria.services.executor.plan.plan_queue import WAITING_PLANS_MAX, PlanQueue

SHAPE = ExecutorLimits(
    max_slots=4,
    max_batch_tokens=64,
    max_model_tokens=200,
    page_size=16,
    num_chunks=40,
    vocabulary=50,
    num_host_chunks=4,
)


def opening(epoch: int) -> StepPlan:
    """A plan that opens an epoch with one stream, whose three tokens are computed and one sampled."""
    fill = Fill(0, Stream(epoch, 0), 0, (1, 2, 3), (), Sampling(temperature=0.0), (), ((5, 6),))
    return StepPlan(epoch, 1, (Slice(0, 0, 3, False, True),), fill=(fill,))


def following(epoch: int, number: int) -> StepPlan:
    """The plan of the decode behind `opening`."""
    return StepPlan(epoch, number, (Slice(0, number + 1, 1, True, True),))


class Executor:
    """A queue, and what happened to it in words."""

    def __init__(self) -> None:
        self.queue: PlanQueue[str] = PlanQueue()
        self.queue.open(SHAPE)
        self.computing: list[Batch] = []
        self.said: list[Any] = []

    def add(self, plan: StepPlan) -> None:
        if failed := self.queue.add(plan, "trace"):
            self.said.append(failed)

    def start(self) -> None:
        """Prepare every plan that may be computed."""
        while queued := self.queue.next():
            batch = self.queue.prepare(queued.plan)
            if isinstance(batch, StepFailed):
                self.said.append(batch)
            else:
                self.queue.post(batch, f"step {batch.epoch}.{batch.number}")
                self.computing.append(batch)

    def finish(self) -> None:
        """Compute the first batch."""
        batch = self.computing.pop(0)
        finished = self.queue.finish(batch, drawn((9,) * len(batch.sampled_rows)))
        self.said.append(finished and (finished.note, [each.ids for each in finished.sampled], finished.wanted))

    def break_(self) -> None:
        """The first batch cannot be computed."""
        batch = self.computing.pop(0)
        self.said.append(
            self.queue.failed(batch) and self.queue.fail(batch.epoch, batch.number, Failure.ERROR, "broke")
        )

    def open(self, epoch: int) -> None:
        self.add(opening(epoch))
        self.start()

    def inventory(self) -> None:
        found = self.queue.take_inventory()
        self.said.append(found and [(each.stream.request, each.length, each.output_ids) for each in found.entries])


def finishes(executor: Executor) -> None:
    executor.open(1)
    executor.finish()


def sends_nothing_of_a_step_whose_epoch_was_replaced(executor: Executor) -> None:
    executor.open(1)
    executor.open(2)
    executor.finish()
    executor.finish()


def discards_plans_of_a_dead_epoch(executor: Executor) -> None:
    executor.open(1)
    executor.break_()
    executor.add(following(1, 2))
    executor.start()
    assert not executor.computing


def does_not_let_a_step_that_was_given_up_fail_the_next_epoch(executor: Executor) -> None:
    executor.open(1)
    executor.add(opening(2))
    executor.break_()
    executor.start()
    executor.finish()


def refuses_a_plan_out_of_order(executor: Executor) -> None:
    executor.open(1)
    executor.add(following(1, 3))
    executor.start()


def refuses_more_plans_than_may_wait(executor: Executor) -> None:
    for number in range(1, WAITING_PLANS_MAX + 2):
        executor.add(StepPlan(1, number, ()))


def tells_the_next_scheduler_what_it_holds(executor: Executor) -> None:
    executor.open(1)
    executor.queue.scheduler_lost()
    executor.queue.scheduler_joined()
    executor.finish()  # taken into the slots, and not sent as a result
    executor.inventory()
    executor.inventory()  # once
    executor.add(following(1, 2))  # of the epoch that has ended with it
    executor.start()
    assert not executor.computing


def owes_no_inventory_to_who_opens_an_epoch(executor: Executor) -> None:
    executor.open(1)
    executor.queue.scheduler_joined()
    executor.open(2)
    executor.inventory()


def holds_nothing_for_the_next_scheduler_when_the_step_under_way_fails(executor: Executor) -> None:
    executor.open(1)
    executor.queue.scheduler_joined()
    executor.break_()
    executor.inventory()


def forgets_everything_when_the_scheduler_does_not_read(executor: Executor) -> None:
    executor.open(1)
    executor.queue.forget()
    executor.finish()
    executor.queue.scheduler_joined()
    executor.inventory()


def forgets_what_was_swapped_out_when_a_step_fails(executor: Executor) -> None:
    executor.open(1)
    executor.finish()
    executor.said.clear()
    executor.add(StepPlan(1, 2, (), release=(0,), swap_out=(Copy(0, 5, 0),), stash=(Stash(0, 3, ((0,),)),)))
    executor.start()
    executor.break_()
    executor.queue.scheduler_joined()
    executor.inventory()


@pytest.mark.parametrize(
    ("story", "said"),
    [
        (finishes, [("step 1.1", [(9,)], True)]),
        (sends_nothing_of_a_step_whose_epoch_was_replaced, [None, ("step 2.1", [(9,)], True)]),
        (discards_plans_of_a_dead_epoch, [StepFailed(1, 1, Failure.ERROR, "broke")]),
        (does_not_let_a_step_that_was_given_up_fail_the_next_epoch, [False, ("step 2.1", [(9,)], True)]),
        (refuses_a_plan_out_of_order, [StepFailed(1, 3, Failure.INVALID, "plan 3 of epoch 1 follows plan 1")]),
        (refuses_more_plans_than_may_wait, [StepFailed(1, 9, Failure.INVALID, "more than 8 plans are waiting")]),
        (tells_the_next_scheduler_what_it_holds, [("step 1.1", [(9,)], False), [(1, 3, (9,))], None]),
        (owes_no_inventory_to_who_opens_an_epoch, [None]),
        (
            holds_nothing_for_the_next_scheduler_when_the_step_under_way_fails,
            [StepFailed(1, 1, Failure.ERROR, "broke"), []],
        ),
        (forgets_what_was_swapped_out_when_a_step_fails, [StepFailed(1, 2, Failure.ERROR, "broke"), None]),
        (forgets_everything_when_the_scheduler_does_not_read, [None, None]),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_plans_results_and_inventories(story: Callable[[Executor], None], said: list[Any]) -> None:
    executor = Executor()
    story(executor)
    assert executor.said == said


def test_a_plan_is_dropped_before_the_model_is_loaded() -> None:
    queue: PlanQueue[str] = PlanQueue()
    assert queue.add(opening(1), "") is None
    assert len(queue) == 0
    assert queue.next() is None
