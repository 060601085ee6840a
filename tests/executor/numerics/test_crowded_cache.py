"""The real executor in a cache hardly larger than one request: 2,000 requests have the tokens that they have in a large one."""

import random
from collections import deque

import pytest
import torch
from executor.numerics.comparison import LEVELS, decoder_of
from executor.numerics.driving import Asked, Driver, Way
from fakes.tiny_model import build_tiny_model

from noria.proto.base import Ended, Stream
from noria.proto.execution import StepDone
from noria.proto.output import TokenRun
from noria.proto.sampling import Sampling
from noria.proto.scheduling import Submission, Submit
from noria.services.executor.model.decoder import Decoder
from noria.services.executor.plan.batch import Batch
from noria.services.executor.plan.batch_builder import prepare, results
from noria.services.scheduler.core.interface.events import SchedulerEvent

REQUESTS, AT_A_TIME, PAGE, MOST = 2000, 16, 4, 48

pytestmark = pytest.mark.usefixtures("one_thread")


class Crowd(Driver):
    """Keeps `AT_A_TIME` requests under way."""

    def serve(self, asked: list[Asked]) -> list[list[int]]:
        """The ids of each."""
        found: list[list[int]] = [[] for _ in asked]
        flying: deque[Batch] = deque()
        alive = submitted = 0
        while alive or submitted < len(asked):
            while alive < AT_A_TIME and submitted < len(asked):
                each = asked[submitted]
                self.take(Submit((Submission(Stream(submitted, 0), 0, each.prompt, each.sampling),)), found)
                alive, submitted = alive + 1, submitted + 1
            while (plan := self.core.plan(self._tick())) is not None:
                flying.append(prepare(self.slots, plan))
            batch = flying.popleft()
            done = StepDone(batch.epoch, batch.number, results(self.slots, batch, self.engine.run(batch)))
            self.engine.seen.clear()
            alive -= self.take(done, found)
        self.core.check()
        return found

    def take(self, body: Submit | StepDone, found: list[list[int]]) -> int:
        """Apply an event; returns how many ended."""
        ended = []
        for reply in self._replies(body):
            found[reply.stream.request] += reply.ids
            if reply.end:
                ended.append(reply.stream)
        if ended:
            self._replies(Ended(tuple(ended)))
        return len(ended)

    def _replies(self, body: Submit | StepDone | Ended) -> list[TokenRun]:
        return [each for each in self.core.apply(SchedulerEvent(self._tick(), body)) if isinstance(each, TokenRun)]


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    folder = build_tiny_model(tmp_path_factory.mktemp("crowded") / "tiny")
    return decoder_of(folder, torch.float32, LEVELS[-1] if LEVELS else "")


def requests(count: int) -> list[Asked]:
    """Prompts that share nothing, so that only what preemption leaves in the cache can help."""
    draw = random.Random(5)
    return [
        Asked(
            tuple(draw.randrange(2, 250) for _ in range(draw.randrange(4, MOST + 1))),
            Sampling(temperature=0.0, max_tokens=draw.randrange(1, MOST + 1)),
        )
        for _ in range(count)
    ]


def check(decoder: Decoder, count: int, host_share: float, most: float) -> None:
    """A cache of 1.5 times the largest against one for all."""
    asked = requests(count)
    largest = 2 * MOST // PAGE
    ample = Crowd(decoder, Way(max_batch_tokens=32, page_size=PAGE, num_blocks=2 + 20 * largest))
    narrow = Crowd(
        decoder,
        Way(
            max_batch_tokens=32,
            page_size=PAGE,
            num_blocks=2 + largest * 3 // 2,
            host_slots=int(largest * host_share),
        ),
    )
    expected, found = ample.serve(asked), narrow.serve(asked)
    assert [len(ids) for ids in expected] == [each.sampling.max_tokens for each in asked]
    assert found == expected
    counters = narrow.core.state.counters
    tokens = sum(len(each.prompt) + len(ids) for each, ids in zip(asked, found, strict=True))
    print(
        f"{counters.resets} resets, {counters.swaps_out} swaps, {counters.recomputed_tokens / tokens:.1%} of {tokens}"
    )
    assert counters.resets + counters.swaps_out > count // 100, "the pool is too large for this test"
    assert counters.recomputed_tokens < most * tokens


@pytest.mark.parametrize(("host_share", "most"), [(0.0, 0.25), (4.0, 0.02)], ids=["reset", "swapped"])
def test_some_requests_have_the_tokens_that_they_have_in_a_large_cache(
    decoder: Decoder, host_share: float, most: float
) -> None:
    check(decoder, 100, host_share, most)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("host_share", "most"), [(0.0, 0.25), (4.0, 0.02)], ids=["reset", "swapped"])
def test_two_thousand_requests_have_the_tokens_that_they_have_in_a_large_cache(
    decoder: Decoder, host_share: float, most: float
) -> None:
    check(decoder, REQUESTS, host_share, most)
