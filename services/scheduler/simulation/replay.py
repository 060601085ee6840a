"""A recorded run through policies: what was measured, what the simulated device makes of it, and what another policy would.

The recorded policy is simulated, too: how far that is from what was measured says how far the rest can be trusted.
"""

from collections.abc import Mapping
from dataclasses import replace

import msgspec

from noria.services.scheduler.simulation.device import SimulatedDevice
from noria.services.scheduler.simulation.jobs import SimulatedOutcome
from noria.services.scheduler.simulation.recording import RecordedRun
from noria.services.scheduler.simulation.report import ObjectiveRow, ServiceObjective, rows
from noria.services.scheduler.simulation.runner import Simulation


class SimulatedRun(msgspec.Struct, frozen=True):
    """One run of the workload. how: `recorded`, or `simulated`."""

    policy: str
    how: str
    seconds: float
    rows: list[ObjectiveRow]


def objectives_of(recording: RecordedRun, chosen: Mapping[str, ServiceObjective]) -> dict[str, ServiceObjective]:
    """What each class is held to: as chosen, else its inter-token target, if it has one."""
    found = {
        each.name: ServiceObjective(itl_ms=each.itl_target_ms or 0.0) for each in recording.began.settings.rules.classes
    }
    return {**found, **chosen}


def replay(
    recording: RecordedRun, policies: tuple[str, ...], chosen: Mapping[str, ServiceObjective]
) -> list[SimulatedRun]:
    """The recorded run where it can be told again, then a simulation under its own policy, then under each other."""
    objectives = objectives_of(recording, chosen)
    own = recording.began.settings.policy
    runs = []
    if recording.whole:
        runs.append(_run(own, "recorded", recording.measured()[1], objectives))
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
        runs.append(_run(policy, "simulated", simulation.run(), objectives))
    return runs


def table(runs: list[SimulatedRun]) -> str:
    """All runs as one table, the rows of one class and tenant together."""
    head = ("class", "tenant", "policy", "", "requests", "served", "SLO", "TTFT p50", "p99", "ITL p50", "p99")
    lines: list[tuple[str, ...]] = [(*head, "end p50", "p99 ms", "tokens/s")]
    keys = dict.fromkeys((row.traffic_class, row.tenant) for run in runs for row in run.rows)
    for key in keys:
        for run in runs:
            lines += [_line(run, row) for row in run.rows if (row.traffic_class, row.tenant) == key]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < 4 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _run(
    policy: str, how: str, outcomes: list[SimulatedOutcome], objectives: Mapping[str, ServiceObjective]
) -> SimulatedRun:
    begun = min((each.job.at_ns for each in outcomes), default=0)
    over = max((each.ended_ns or 0 for each in outcomes), default=0)
    seconds = max(0.0, (over - begun) / 1e9)
    return SimulatedRun(policy, how, seconds, rows(outcomes, objectives, seconds))


def _line(run: SimulatedRun, row: ObjectiveRow) -> tuple[str, ...]:
    times = (row.ttft_p50_ms, row.ttft_p99_ms, row.itl_p50_ms, row.itl_p99_ms, row.total_p50_ms, row.total_p99_ms)
    return (
        row.traffic_class or "all",
        row.tenant or "all",
        run.policy,
        run.how,
        str(row.requests),
        str(row.served),
        f"{row.attained:.1%}",
        *(f"{each:.1f}" for each in times),
        f"{row.tokens_s:.1f}",
    )
