"""What a run amounted to: latencies, attainment of objectives and throughput, by class and tenant."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from noria.services.scheduler.simulation.jobs import SimulatedOutcome


class ServiceObjective(msgspec.Struct, frozen=True):
    """A service-level objective: the first token within `ttft_ms`, tokens `itl_ms` apart on average; 0 for no bound."""

    ttft_ms: float = 0.0
    itl_ms: float = 0.0

    def met(self, outcome: SimulatedOutcome) -> bool:
        """Whether a request was served to its end within the objective."""
        ttft_ms = outcome.ttft_ms
        if not outcome.served or ttft_ms is None:
            return False
        return (not self.ttft_ms or ttft_ms <= self.ttft_ms) and (not self.itl_ms or outcome.itl_ms <= self.itl_ms)


class ObjectiveRow(msgspec.Struct, frozen=True):
    """One class, tenant or both ("" where all are meant). Latencies in milliseconds; tokens are those of outputs.

    attained: share of the requests that came, refused ones included, that were served within their objective.
    """

    traffic_class: str
    tenant: str
    requests: int
    served: int
    refused: int
    expired: int
    cancelled: int
    attained: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    itl_p50_ms: float
    itl_p99_ms: float
    total_p50_ms: float
    total_p99_ms: float
    tokens_s: float


class SimulatedRun(msgspec.Struct, frozen=True):
    """One run of the workload. how: `recorded`, or `simulated`."""

    policy: str
    how: str
    seconds: float
    rows: list[ObjectiveRow]


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


def rows(
    outcomes: Sequence[SimulatedOutcome], objectives: Mapping[str, ServiceObjective], seconds: float
) -> list[ObjectiveRow]:
    """A row for each class and tenant that occurs, for each class with several tenants, and for all together."""
    found: dict[tuple[str, str], list[SimulatedOutcome]] = {}
    for each in outcomes:
        name, tenant = each.job.submission.traffic_class, each.job.submission.tenant
        found.setdefault((name, tenant), []).append(each)
    for name in sorted({name for name, _ in found}):
        of_class = [each for each in outcomes if each.job.submission.traffic_class == name]
        found[name, ""] = of_class
    if len(found) > 1 or not found:
        found["", ""] = list(outcomes)
    return [_row(*key, each, objectives, seconds) for key, each in sorted(found.items(), key=lambda item: item[0])]


def attained(outcomes: Iterable[SimulatedOutcome], objectives: Mapping[str, ServiceObjective]) -> float:
    """The share of requests within the objective of their class; 1 without requests."""
    met = [objectives.get(each.job.submission.traffic_class, ServiceObjective()).met(each) for each in outcomes]
    return sum(met) / len(met) if met else 1.0


def run_of(
    policy: str, how: str, outcomes: list[SimulatedOutcome], objectives: Mapping[str, ServiceObjective]
) -> SimulatedRun:
    """What a run amounted to, from its first arrival to its last end."""
    begun = min((each.job.at_ns for each in outcomes), default=0)
    over = max((each.ended_ns or 0 for each in outcomes), default=0)
    seconds = max(0.0, (over - begun) / 1e9)
    return SimulatedRun(policy, how, seconds, rows(outcomes, objectives, seconds))


def quantile(values: Sequence[float], share: float) -> float:
    """The value that this share of them does not exceed (nearest rank); 0 without values."""
    if not values:
        return 0.0
    return sorted(values)[min(len(values) - 1, max(0, round(share * len(values) + 0.5) - 1))]


def _row(
    name: str, tenant: str, outcomes: list[SimulatedOutcome], objectives: Mapping[str, ServiceObjective], seconds: float
) -> ObjectiveRow:
    ttft = [each.ttft_ms for each in outcomes if each.ttft_ms is not None]
    gaps = [gap / 1e6 for each in outcomes for gap in each.gaps_ns]
    total = [each.total_ms for each in outcomes if each.total_ms is not None]
    ends = [each.end.label for each in outcomes if each.end is not None]
    return ObjectiveRow(
        traffic_class=name,
        tenant=tenant,
        requests=len(outcomes),
        served=len(total),
        refused=sum(each.refused for each in outcomes),
        expired=ends.count("deadline"),
        cancelled=ends.count("cancelled"),
        attained=attained(outcomes, objectives),
        ttft_p50_ms=quantile(ttft, 0.5),
        ttft_p99_ms=quantile(ttft, 0.99),
        itl_p50_ms=quantile(gaps, 0.5),
        itl_p99_ms=quantile(gaps, 0.99),
        total_p50_ms=quantile(total, 0.5),
        total_p99_ms=quantile(total, 0.99),
        tokens_s=sum(each.tokens for each in outcomes) / seconds if seconds else 0.0,
    )


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
