"""What watchers are told of steps and moves, and that nothing is kept for nobody."""

from typing import Any

import msgspec
from fakes.desk import Desk, submission
from msgspec.structs import replace

from noria.proto.scheduling import Submission
from noria.services.scheduler.core.interface.events import StreamPhaseChanged
from noria.services.scheduler.core.interface.settings import CoreSettings
from noria.services.scheduler.observe.live_view import LiveView
from noria.services.scheduler.observe.request_history import RequestHistory

SECOND_NS = 1_000_000_000


class Watched:
    """A desk with its stories and a watch, moved as the service moves them."""

    def __init__(self, **settings: Any) -> None:
        self.desk = Desk(CoreSettings(**settings))
        self.stories = RequestHistory(self.desk.core.view)
        self.live = LiveView(self.desk.core.view, self.stories)
        self._heard = 0

    def submit(self, *submissions: Submission) -> None:
        self.desk.submit(*submissions)
        self.record()

    def record(self) -> None:
        for reply in self.desk.replies[self._heard :]:
            if isinstance(reply, StreamPhaseChanged):
                self.stories.phase_changed(reply)
                self.live.phase_changed(reply)
        self._heard = len(self.desk.replies)

    def step(self) -> None:
        plan = self.desk.planned()
        self.live.step_sent(plan, self.desk.now_ns)
        self.desk.done()
        self.record()

    def ask(self, about: str = "") -> dict[str, Any]:
        answer: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self.live.answer(about, self.desk.now_ns)))
        return answer


def test_nothing_is_kept_before_somebody_asks_and_some_time_after_the_last_question() -> None:
    watched = Watched()
    watched.submit(submission(1, prompt=4, output=9))
    watched.step()
    first = watched.ask()
    assert (first["steps"], first["moves"]) == ([], [])
    watched.step()
    assert len(watched.ask(str(first["serial"]))["steps"]) == 1
    watched.desk.now_ns += 4 * SECOND_NS
    watched.step()
    assert watched.ask("0")["steps"] == [], "what was kept is given up with the watch"


def test_a_step_tells_slots_requests_tokens_and_whether_they_are_of_a_prompt() -> None:
    watched = Watched(max_batch_tokens=6, prefill_tokens=None)
    watched.ask()
    watched.submit(replace(submission(1, prompt=8, output=4), traffic_class="batch", tenant="acme"))
    for _ in range(3):
        watched.step()
    told = watched.ask("0")
    assert [step["cells"] for step in told["steps"]] == [[0, 1, 0, 6, 1], [0, 1, 0, 2, 1], [0, 1, 0, 1, 0]]
    stages = [(move["stage"], move["class"], move["tenant"], move["prompt_tokens"]) for move in told["moves"]]
    assert stages == [(stage, "batch", "acme", 8) for stage in ("waiting", "prefill", "decode")]
    serials = [each["serial"] for each in (*told["steps"], *told["moves"])]
    assert len(set(serials)) == len(serials)
    assert max(serials) == told["serial"]


def test_what_was_told_is_not_told_again_and_newcomers_are_told_who_there_is() -> None:
    watched = Watched()
    watched.submit(submission(1, output=9), submission(2, output=9))
    watched.step()
    first = watched.ask()
    assert {(each["request"], each["stage"]) for each in first["requests"]} == {(1, "decode"), (2, "decode")}
    watched.step()
    second = watched.ask(str(first["serial"]))
    assert len(second["steps"]) == 1
    assert "requests" not in second
    third = watched.ask(str(second["serial"]))
    assert (third["steps"], third["moves"]) == ([], [])


def test_queues_count_who_runs_and_waits_and_the_tokens_computed_while_somebody_watched() -> None:
    watched = Watched(max_requests_per_batch=1)
    watched.ask()
    watched.submit(
        *(replace(submission(each, prompt=4, output=3), tenant="acme", traffic_class="batch") for each in (1, 2))
    )
    watched.desk.now_ns += SECOND_NS
    watched.step()
    watched.step()
    watched.desk.now_ns += SECOND_NS
    watched.ask("0")
    watched.desk.now_ns += SECOND_NS
    (row,) = watched.ask("0")["queues"]
    assert (row["class"], row["tenant"]) == ("batch", "acme")
    assert (row["running"], row["waiting"], row["preempted"]) == (1, 1, 0)
    assert row["tokens"] == 4 + 1, "each step is counted once, however often it is told"
