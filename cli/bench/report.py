"""The result of a benchmark run, as one JSON object for programs and as one table for people."""

import msgspec

from noria.cli.bench.arrivals import LoadPattern, describe_load
from noria.cli.bench.request_timeline import BenchTimeline
from noria.cli.bench.statistics import Distribution, Summary


class ReportRow(msgspec.Struct, frozen=True):
    """One request of the report, in milliseconds. begun_ms counts from the first request; ttft_ms is None without an answer."""

    index: int
    begun_ms: float
    ttft_ms: float | None
    e2e_ms: float
    prompt_tokens: int
    output_tokens: int
    error: str


class BenchReport(msgspec.Struct, frozen=True):
    """The result of one run. client_cpu: cores that this client kept busy; near 1, the client itself was the bottleneck."""

    noria: str
    began: str
    target: str
    model: str
    workload: str
    load: LoadPattern
    temperature: float
    warmup: int
    left_out: int
    client_cpu: float
    summary: Summary
    rows: tuple[ReportRow, ...]


def report_rows(timelines: tuple[BenchTimeline, ...]) -> tuple[ReportRow, ...]:
    """Return one row for each request, in the order of the requests."""
    start_s = min((each.begun_s for each in timelines), default=0.0)
    return tuple(
        ReportRow(
            each.index,
            (each.begun_s - start_s) * 1000,
            each.ttft_s * 1000 if each.arrivals else None,
            each.e2e_s * 1000,
            each.prompt_tokens,
            each.output_tokens,
            each.error,
        )
        for each in timelines
    )


def render_table(report: BenchReport) -> str:
    """Return the report as a table for a terminal."""
    found = report.summary
    lines = [
        f"{report.target}, {report.model}; {report.workload}, {describe_load(report.load)}",
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


def _remarks(report: BenchReport) -> list[str]:
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
