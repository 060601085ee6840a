"""What came of it: how long each kind of death held streams up, the longest pauses, and whatever was lost."""

import itertools
import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime

from chaos.killer import Hit
from chaos.readers import Answer

# What arrives so soon after a death was on its way before.
_ON_ITS_WAY_S = 0.05


@dataclass(frozen=True)
class Recovery:
    """From deaths of one kind to each stream's next token, in seconds, over so many streams; without the model's load."""

    hits: int
    streams: int
    p50_s: float
    max_s: float
    p50_without_load_s: float | None = None
    max_without_load_s: float | None = None


@dataclass(frozen=True)
class Report:
    """One run. lost: accepted answers that did not come whole or not with the expected tokens."""

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
    recoveries: dict[str, Recovery] = field(default_factory=dict)

    def table(self) -> str:
        """For people."""
        lines = [
            f"{self.hits} blows to {self.streams} streams (seed {self.seed}): {self.answers} answers, {self.tokens} tokens, "
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
        """For programs."""
        return json.dumps(asdict(self), indent=1)


def report(seed: int, streams: int, answers: Sequence[Answer], hits: Sequence[Hit], refusals: int, log: str) -> Report:
    """Count everything."""
    loads = _loads(log)
    by_name: dict[str, list[tuple[float, float]]] = {}
    counts: dict[str, int] = {}
    for hit in hits:
        counts[hit.blow.name] = counts.get(hit.blow.name, 0) + 1
        load_s = next((load_s for at_s, load_s in loads if at_s > hit.at_s), 0.0)
        waits = [wait_s for answer in answers if (wait_s := _wait(answer, hit.at_s)) is not None]
        by_name.setdefault(hit.blow.name, []).extend((wait_s, max(0.0, wait_s - load_s)) for wait_s in waits)
    failures = [f"{each.reader} {each.question}: {each.failure}" for each in answers if each.failure]
    pauses = [pause_s for answer in answers for pause_s in _pauses(answer)]
    return Report(
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


def _recovery(hits: int, waits: list[tuple[float, float]], *, loaded: bool) -> Recovery:
    whole = [each for each, _ in waits]
    without = [each for _, each in waits]
    return Recovery(
        hits,
        len(waits),
        statistics.median(whole),
        max(whole),
        statistics.median(without) if loaded else None,
        max(without) if loaded else None,
    )


def _wait(answer: Answer, at_s: float) -> float | None:
    """From a death to the next token of a stream that was under way; None for one that was not."""
    if not answer.began_s or answer.began_s > at_s or answer.ended_s < at_s + _ON_ITS_WAY_S:
        return None
    later = next((each for each in answer.arrivals_s if each >= at_s + _ON_ITS_WAY_S), answer.ended_s)
    return later - at_s


def _pauses(answer: Answer) -> list[float]:
    times = [answer.began_s, *answer.arrivals_s]
    return [later - earlier for earlier, later in itertools.pairwise(times)]


def _loads(log: str) -> list[tuple[float, float]]:
    """When executors were started, and how long each took until its model was there: imports included."""
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
