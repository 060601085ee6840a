"""`python -m noria.services.scheduler.simulation replay|why LOG …`: what `noria replay` and `noria why --log` run.

A replay puts a recorded run through policies: what was measured, what the simulated device makes of it, and what another policy
would. The recorded policy is simulated, too: how far that is from what was measured says how far the rest can be trusted.
"""

import argparse
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

from noria.services.scheduler.core.interface.events import SchedulerEvent, StreamPhaseChanged
from noria.services.scheduler.core.interface.traffic_rules import FairRules
from noria.services.scheduler.core.policy.policies import policy_named
from noria.services.scheduler.observe.request_history import RequestHistory
from noria.services.scheduler.simulation.device import SimulatedDevice
from noria.services.scheduler.simulation.recording import RecordedRun
from noria.services.scheduler.simulation.report import ServiceObjective, SimulatedRun, run_of, table
from noria.services.scheduler.simulation.runner import Simulation
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


def objectives_of(recording: RecordedRun, chosen: Mapping[str, ServiceObjective]) -> dict[str, ServiceObjective]:
    """The objective of each class: as chosen, else its inter-token target, if it has one."""
    found = {
        each.name: ServiceObjective(itl_ms=each.itl_target_ms or 0.0) for each in recording.began.settings.rules.classes
    }
    return {**found, **chosen}


def replay(
    recording: RecordedRun, policies: tuple[str, ...], chosen: Mapping[str, ServiceObjective]
) -> list[SimulatedRun]:
    """The recorded run where it can be repeated, then a simulation under its own policy, then under each other."""
    objectives = objectives_of(recording, chosen)
    own = recording.began.settings.policy
    runs = []
    if recording.whole:
        runs.append(run_of(own, "recorded", recording.outcomes()[1], objectives))
    for policy in dict.fromkeys((own, *policies)):
        simulation = Simulation(
            replace(recording.began.settings, policy=policy),
            recording.geometry,
            lambda token: SimulatedDevice(recording.step_time(), token),
            recording.jobs(),
            output=lambda job, position: recording.token(
                job.submission.stream, len(job.submission.prompt_ids) + position
            ),
        )
        runs.append(run_of(policy, "simulated", simulation.run(), objectives))
    return runs


def story(recording: RecordedRun, request: int) -> list[str]:
    """What became of a request in a recorded run, as lines of text. Raises UserError when it cannot be told."""
    if not recording.whole:
        raise UserError("this log begins in the middle of a run: what was decided cannot be worked out from it")
    history: RequestHistory | None = None
    now_ns = 0
    for core, now_ns, body, _ in recording.replay_events():
        history = history or RequestHistory(core.view)
        if body is not None:
            for reply in core.apply(SchedulerEvent(now_ns, body)):
                if isinstance(reply, StreamPhaseChanged):
                    history.phase_changed(reply)
    return history.answer(str(request), now_ns)["why"] if history is not None else []


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
