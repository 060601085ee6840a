"""What a run is told as: one JSON object for programs, one table for a person."""

import msgspec

from noria.cli.bench.arrivals import Load, described
from noria.cli.bench.request_timeline import Observed
from noria.cli.bench.statistics import Distribution, Summary


class Row(msgspec.Struct, frozen=True):
    """One request; milliseconds, those of the beginning from the first one's. ttft_ms is None when nothing came."""

    index: int
    begun_ms: float
    ttft_ms: float | None
    e2e_ms: float
    prompt_tokens: int
    output_tokens: int
    error: str


class Report(msgspec.Struct, frozen=True):
    """A whole run. client_cpu: cores that this client kept busy; near 1, it was the client that was measured."""

    noria: str
    began: str
    target: str
    model: str
    workload: str
    load: Load
    temperature: float
    warmup: int
    left_out: int
    client_cpu: float
    summary: Summary
    rows: tuple[Row, ...]


def rows(observed: tuple[Observed, ...]) -> tuple[Row, ...]:
    """The requests, in the order of the jobs."""
    start_s = min((each.begun_s for each in observed), default=0.0)
    return tuple(
        Row(
            each.index,
            (each.begun_s - start_s) * 1000,
            each.first_s * 1000 if each.arrivals else None,
            each.whole_s * 1000,
            each.prompt_tokens,
            each.output_tokens,
            each.error,
        )
        for each in observed
    )


def table(report: Report) -> str:
    """The figures for a terminal."""
    found = report.summary
    lines = [
        f"{report.target}, {report.model}; {report.workload}, {described(report.load)}",
        "",
        f"requests        {found.completed} of {found.requests} completed in {found.duration_s:.2f} s"
        f" ({found.requests_s:.2f}/s)",
        f"tokens          {found.prompt_tokens} in ({found.cached_tokens} cached), {found.output_tokens} out",
        f"output          {found.output_tokens_s:.1f} tok/s",
        f"total           {found.total_tokens_s:.1f} tok/s",
    ]
    if found.goodput is not None:
        lines.append(f"goodput         {found.goodput.share:.1%} of requests ({found.goodput.requests_s:.2f}/s)")
    lines += ["", _line("ms", "mean", "p50", "p90", "p99", "max")]
    named = (
        ("first token", found.ttft_ms),
        ("between tokens", found.itl_ms),
        ("between pieces", found.piece_ms),
        ("whole answer", found.e2e_ms),
    )
    lines += [_distribution(name, each) for name, each in named]
    return "\n".join([*lines, *_remarks(report)])


def _remarks(report: Report) -> list[str]:
    found = report.summary
    remarks = [f"{count} failed: {error}" for error, count in found.errors.items()]
    if found.short:
        remarks.append(f"{found.short} answers are shorter than asked for (does the target know ignore_eos?)")
    if found.uncounted:
        remarks.append(f"{found.uncounted} answers came without usage: their pieces were counted as tokens")
    if report.left_out:
        remarks.append(f"{report.left_out} requests of the trace were left out as too long")
    if found.slip_ms.p99 > 10:
        remarks.append(f"the client sent requests up to {found.slip_ms.max:.0f} ms late")
    if report.client_cpu > 0.5:
        remarks.append(f"this client kept {report.client_cpu:.2f} cores busy: it may be what was measured")
    return ["", *remarks] if remarks else []


def _distribution(name: str, each: Distribution) -> str:
    return _line(name, *(f"{value:.1f}" for value in (each.mean, each.p50, each.p90, each.p99, each.max)))


def _line(name: str, *cells: str) -> str:
    return f"{name:<15}" + "".join(f"{cell:>11}" for cell in cells)
