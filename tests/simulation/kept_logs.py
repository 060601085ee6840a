"""Event logs that earlier commits wrote, and what was worked out from them: `tests/fixtures/event_logs`.

A log is kept as it was written and never written again: whoever recorded one wants to replay it with a later Noria. What
is worked out may change with a policy: `PYTHONPATH=tests python -m simulation.kept_logs --write`, and look at the diff.
`--record NAME` adds logs of the present commit, three runs of the scheduler with a fake executor: one short of cache,
which swaps; one in which schedulers die and take over; one with the policy `fair` and resets.
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any, Final

import msgspec
from fakes.world import World
from scheduler.observe.test_event_log import record

from noria.proto.execution import StepPlan
from noria.services.scheduler.core.interface.events import SchedulerEvent
from noria.services.scheduler.simulation.__main__ import replay, story
from noria.services.scheduler.simulation.recording import RecordedRun

FOLDER: Final = Path(__file__).parents[1] / "fixtures" / "event_logs"
LOGS: Final = tuple(sorted(FOLDER.glob("*.log")))
_WORLDS: Final[dict[str, dict[str, Any]]] = {
    "swaps": {"seed": 3},
    "deaths": {"seed": 4, "deaths": 0.005},
    "fair": {"seed": 5, "fair": True},
}


def answers(log: Path) -> dict[str, Any]:
    """What is worked out from a log: its plans, the story of each request, what other policies would have done."""
    recording = RecordedRun(log)
    plans: list[StepPlan] = []
    for core, now_ns, body, planned in recording.replay_events():
        plans += planned
        if body is not None:
            core.apply(SchedulerEvent(now_ns, body))
    requests = sorted({stream.request for stream in recording.arrivals})
    return {
        "plans": list(map(_told, plans)),
        "why": {str(request): story(recording, request) for request in requests},
        "replay": _rounded(msgspec.to_builtins(replay(recording, ("fifo", "prefill_first", "fair"), {}))),
    }


def _told(plan: StepPlan) -> str:
    """A plan's number, its slices, and a digest of what else is in it but ids, which a log has not."""
    fills = [(each.slot, each.stream, len(each.prompt_ids), len(each.output_ids), each.blocks) for each in plan.fill]
    rest = (fills, plan.slices, plan.release, plan.grow, plan.swap_out, plan.copies, plan.swap_in, plan.replace)
    digest = hashlib.sha256(msgspec.msgpack.encode(rest)).hexdigest()[:12]
    return f"{plan.epoch}.{plan.number} fills {len(fills)} slices {len(plan.slices)} {digest}"


def _rounded(value: Any) -> Any:
    """Floats to six digits: their last ones differ between processors."""
    match value:
        case float():
            return float(f"{value:.6g}")
        case dict():
            return {key: _rounded(inner) for key, inner in value.items()}
        case list() | tuple():
            return list(map(_rounded, value))
        case _:
            return value


def main(arguments: list[str]) -> None:
    """Write answers anew, or record logs."""
    match arguments:
        case ["--write"]:
            for log in LOGS:
                log.with_suffix(".json").write_text(json.dumps(answers(log), indent=1) + "\n")
        case ["--record", name]:
            FOLDER.mkdir(parents=True, exist_ok=True)
            for what, options in _WORLDS.items():
                log = FOLDER / f"{name}-{what}.log"
                assert not log.exists(), f"{log} is kept"
                world = World(**options)
                world.run()
                record(world, log)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
