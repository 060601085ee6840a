"""`python -m noria.services.scheduler.simulation replay|why LOG …`: what `noria replay` and `noria why --log` run."""

import argparse
import sys
from pathlib import Path

import msgspec

from noria.services.scheduler.core.interface.events import PhaseChanged, SchedulerEvent
from noria.services.scheduler.core.interface.traffic_rules import FairRules
from noria.services.scheduler.core.policy.policies import policy_named
from noria.services.scheduler.observe.request_history import RequestHistory
from noria.services.scheduler.simulation.recording import RecordedRun
from noria.services.scheduler.simulation.replay import replay, table
from noria.services.scheduler.simulation.report import ServiceObjective
from noria.shared.errors import UserError


def main() -> int:
    """Run one command; a mistake is one line and exit status 2."""
    parser = argparse.ArgumentParser(prog="noria")
    commands = parser.add_subparsers(dest="command", required=True)
    replaying = commands.add_parser("replay")
    replaying.add_argument("log", type=Path)
    replaying.add_argument("--policy", action="append", default=[])
    replaying.add_argument("--slo", action="append", default=[])
    replaying.add_argument("--json", action="store_true")
    why = commands.add_parser("why")
    why.add_argument("log", type=Path)
    why.add_argument("request", type=int)
    chosen = parser.parse_args()
    try:
        recording = RecordedRun(chosen.log)
        if chosen.command == "why":
            return _why(recording, chosen.request)
        for name in chosen.policy:
            policy_named(name, FairRules())
        runs = replay(recording, tuple(chosen.policy), dict(map(_objective, chosen.slo)))
    except (UserError, ValueError) as error:
        print(f"noria: {error}", file=sys.stderr)
        return 2
    print(msgspec.json.encode(runs).decode() if chosen.json else table(runs))
    return 0


def story(recording: RecordedRun, request: int) -> list[str]:
    """What became of a request in a recorded run, in plain words. Raises UserError when it cannot be told."""
    if not recording.whole:
        raise UserError("this log begins in the middle of a run: what was decided cannot be worked out from it")
    stories: RequestHistory | None = None
    for core, now_ns, body, _ in recording.again():
        stories = stories or RequestHistory(core.board)
        if body is not None:
            for reply in core.apply(SchedulerEvent(now_ns, body)):
                if isinstance(reply, PhaseChanged):
                    stories.moved(reply)
    return stories.answer(str(request))["why"] if stories is not None else []


def _why(recording: RecordedRun, request: int) -> int:
    lines = story(recording, request)
    print("\n".join(lines) if lines else f"there is no request {request} in this log")
    return 0 if lines else 1


def _objective(text: str) -> tuple[str, ServiceObjective]:
    """CLASS:TTFT_MS[:ITL_MS]."""
    name, _, times = text.partition(":")
    ttft, _, itl = times.partition(":")
    try:
        return name, ServiceObjective(float(ttft or 0), float(itl or 0))
    except ValueError:
        raise UserError(f"--slo takes CLASS:TTFT_MS[:ITL_MS], not {text!r}") from None


if __name__ == "__main__":
    sys.exit(main())
