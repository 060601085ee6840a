"""The textbook example of continuous batching.

Four slots; requests of one prompt token that end by length after 3, 5, 8 and 12 steps; others of 4, 6 and 3 steps wait.
The step that computes the prompt token also samples the first output token, so a request of k steps is one of k output
tokens, and a slot-step is useful when it yields a token. A static batch runs its four requests for as long as the
longest: 3 + 5 + 8 + 12 = 28 useful of 4 x 12 = 48 slot-steps. Continuous batching fills the slots as they become free:
all 28 + 4 + 6 + 3 = 41 are done in the same twelve steps.
"""

import pytest
from fakes.desk import Desk, submission
from fakes.executor import geometry

from noria.services.scheduler.core.interface.settings import CoreSettings

FIRST = (3, 5, 8, 12)
WAITING = (4, 6, 3)


@pytest.mark.parametrize("steps_in_flight", [1, 2])
@pytest.mark.parametrize("policy", ["fifo", "prefill_first"])
def test_the_textbook_example_does_41_useful_slot_steps_in_twelve_steps(policy: str, steps_in_flight: int) -> None:
    settings = CoreSettings(
        policy=policy, max_requests_per_batch=4, steps_in_flight=steps_in_flight, max_batch_tokens=16
    )
    desk = Desk(settings, geometry(max_slots=4))
    desk.submit(*(submission(number, 1, steps) for number, steps in enumerate((*FIRST, *WAITING))))
    desk.run()
    useful = [len(plan.slices) for plan in desk.plans if plan.slices]
    assert len(useful) == 12
    assert sum(useful) == 41
    assert sum(FIRST) == 28
    assert [len(desk.output(number)) for number in range(7)] == [*FIRST, *WAITING]
