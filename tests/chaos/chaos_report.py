"""The report of a chaos run: how long each kind of kill delayed streams, the longest pauses, and lost answers."""

import itertools
import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime

from chaos.killer import PerformedKill
from chaos.readers import ChaosAnswer

# A token that arrives so soon after a kill was on its way before.
_ON_ITS_WAY_S = 0.05


@dataclass(frozen=True)
class RecoveryTimes:
    """Seconds from kills of one kind to each stream's next token; also without the time that the model took to load."""

    hits: int
    streams: int
    p50_s: float
    max_s: float
    p50_without_load_s: float | None = None
    max_without_load_s: float | None = None


@dataclass(frozen=True)
class ChaosReport:
    """The result of one run. lost: accepted answers that did not come whole, or not with the expected tokens."""

    seed: int
    streams: int
    hits: int
    answers: int
    tokens: int
    resumed_over_http: int
    refusals: int
    lost: int
    failures: list[str]
    longest_pause_s: float
    recoveries: dict[str, RecoveryTimes] = field(default_factory=dict)

    def table(self) -> str:
        """Return the report as a table for a terminal."""
        lines = [
            f"{self.hits} kills under {self.streams} streams (seed {self.seed}): {self.answers} answers, {self.tokens} tokens, "
            f"{self.lost} lost, {self.refusals} refusals tried again, {self.resumed_over_http} resumed over HTTP",
            f"longest pause of a stream: {self.longest_pause_s:.2f} s",
            f"{'died':<24}{'times':>6}{'streams':>9}{'p50 s':>9}{'max s':>9}{'without load p50':>18}{'max':>8}",
        ]
        for name, each in sorted(self.recoveries.items()):
            line = f"{name:<24}{each.hits:>6}{each.streams:>9}{each.p50_s:>9.2f}{each.max_s:>9.2f}"
            if each.p50_without_load_s is not None and each.max_without_load_s is not None:
                line += f"{each.p50_without_load_s:>18.2f}{each.max_without_load_s:>8.2f}"
            lines.append(line)
        return "\n".join([*lines, *(f"LOST {failure}" for failure in self.failures)])

    def json(self) -> str:
        """Return the report as JSON."""
        return json.dumps(asdict(self), indent=1)


def make_report(
    seed: int, streams: int, answers: Sequence[ChaosAnswer], hits: Sequence[PerformedKill], refusals: int, log: str
) -> ChaosReport:
    """Compute the report of a run from its answers, its kills and the stack's log."""
    loads = _loads(log)
    by_name: dict[str, list[tuple[float, float]]] = {}
    counts: dict[str, int] = {}
    for hit in hits:
        counts[hit.kill.name] = counts.get(hit.kill.name, 0) + 1
        load_s = next((load_s for at_s, load_s in loads if at_s > hit.at_s), 0.0)
        waits = [wait_s for answer in answers if (wait_s := _wait(answer, hit.at_s)) is not None]
        by_name.setdefault(hit.kill.name, []).extend((wait_s, max(0.0, wait_s - load_s)) for wait_s in waits)
    failures = [f"{each.reader} {each.question}: {each.failure}" for each in answers if each.failure]
    pauses = [pause_s for answer in answers for pause_s in _pauses(answer)]
    return ChaosReport(
        seed,
        streams,
        len(hits),
        len(answers),
        sum(len(each.ids) for each in answers),
        sum(each.resumed for each in answers),
        refusals,
        len(failures),
        failures,
        max(pauses, default=0.0),
        {name: _recovery(counts[name], waits, loaded="executor" in name) for name, waits in by_name.items() if waits},
    )


def _recovery(hits: int, waits: list[tuple[float, float]], *, loaded: bool) -> RecoveryTimes:
    whole = [each for each, _ in waits]
    without = [each for _, each in waits]
    return RecoveryTimes(
        hits,
        len(waits),
        statistics.median(whole),
        max(whole),
        statistics.median(without) if loaded else None,
        max(without) if loaded else None,
    )


def _wait(answer: ChaosAnswer, at_s: float) -> float | None:
    """Return the seconds from a kill to a stream's next token; None for a stream that was not under way."""
    if not answer.began_s or answer.began_s > at_s or answer.ended_s < at_s + _ON_ITS_WAY_S:
        return None
    later = next((each for each in answer.arrivals_s if each >= at_s + _ON_ITS_WAY_S), answer.ended_s)
    return later - at_s


def _pauses(answer: ChaosAnswer) -> list[float]:
    times = [answer.began_s, *answer.arrivals_s]
    return [later - earlier for earlier, later in itertools.pairwise(times)]


def _loads(log: str) -> list[tuple[float, float]]:
    """Return when each executor was started, and how many seconds it took until its model was loaded, imports included."""
    loads: list[tuple[float, float]] = []
    spawned_s = 0.0
    for line in log.splitlines():
        if '"event": "service spawned"' in line and '"child": "executor"' in line:
            spawned_s = _time(line)
        elif '"event": "model loaded"' in line and spawned_s:
            loads.append((spawned_s, _time(line) - spawned_s))
            spawned_s = 0.0
    return loads


def _time(line: str) -> float:
    return datetime.fromisoformat(str(json.loads(line)["timestamp"])).timestamp()
