"""`noria bench`: measures throughput and latencies of a server under load."""

import datetime
import importlib.metadata
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import click
import msgspec

from noria.cli.bench.progress import progress_line
from noria.cli.flags import config_flags, settings
from noria.shared.errors import UserError

if TYPE_CHECKING:
    from noria.cli.bench.arrivals import LoadPattern
    from noria.cli.bench.load_driver import LoadResult
    from noria.cli.bench.statistics import LatencyObjective
    from noria.cli.bench.targets.target import Target
    from noria.cli.bench.workload import BenchRequest

_SECTIONS: Final = ("model", "scheduler", "cache", "executor", "runtime")


class BenchOptions(msgspec.Struct, frozen=True):
    """The options of `noria bench`, as click names them."""

    url: str | None
    offline: bool
    endpoint: Literal["completions", "chat"]
    served_model: str
    api_key: str
    extra_body: str
    workload: Path | None
    trace: Path | None
    input_tokens: str
    output_tokens: str
    tokens_max: int | None
    skip: int
    requests: int | None
    concurrency: int | None
    rate: float | None
    speed: float
    temperature: float
    ignore_eos: bool
    seed: int
    warmup: int
    timeout_s: float
    slo: str | None
    out: Path | None
    plot: Path | None
    as_json: bool


_FILE: Final = click.Path(dir_okay=False, path_type=Path)
_NEW: Final = click.IntRange(min=1)


@click.command()
@click.option("--url", help="OpenAI-compatible server to measure. [default: this machine's stack, over ZeroMQ]")
@click.option("--offline", is_flag=True, help="Run scheduler and executor in this process, without a server.")
@click.option("--endpoint", type=click.Choice(["completions", "chat"]), default="completions", show_default=True)
@click.option(
    "--served-model", default="", help="Model name in requests to --url. [default: the first model that it lists]"
)
@click.option("--api-key", default="", help="Bearer token for --url.")
@click.option("--extra-body", default="{}", help="JSON object with additional fields for each request to --url.")
@click.option("--workload", type=_FILE, help="JSONL file of prompts: lines with prompt and max_tokens.")
@click.option("--trace", type=_FILE, help="Replay the times and lengths of a trace: Azure's .csv or Mooncake's .jsonl.")
@click.option(
    "--input-tokens", default="128", show_default=True, help="Length of made-up prompts, or a range like 64:512."
)
@click.option(
    "--output-tokens", default="64", show_default=True, help="Length of answers to made-up prompts, or a range."
)
@click.option("--tokens-max", type=_NEW, help="Leave out requests of a trace that have more tokens than this.")
@click.option("--skip", type=click.IntRange(min=0), default=0, help="Skip this many requests of the workload file.")
@click.option("--requests", type=_NEW, help="Number of requests. [default: all of a file or trace, else 64]")
@click.option("--concurrency", type=_NEW, help="Requests in flight at any time. [default: 32]")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Poisson arrivals, this many per second.")
@click.option(
    "--speed", type=click.FloatRange(min=0, min_open=True), default=1.0, help="Replay a trace this many times faster."
)
@click.option("--temperature", type=click.FloatRange(min=0), default=0.0, show_default=True)
@click.option("--ignore-eos/--no-ignore-eos", default=True, help="Ask for answers of full length. [default: on]")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of made-up prompts and Poisson arrivals.")
@click.option(
    "--warmup",
    type=click.IntRange(min=0),
    default=8,
    show_default=True,
    help="Number of requests to send before measuring.",
)
@click.option(
    "--timeout-s", type=click.FloatRange(min=0, min_open=True), default=600.0, help="Longest time for one answer."
)
@click.option("--slo", help="Count requests that meet objectives in ms, such as ttft:500,itl:50,e2e:8000.")
@click.option("--out", type=_FILE, help="Write the whole result to this JSON file.")
@click.option("--plot", type=_FILE, help="Draw the result to this .png or .svg file.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of the table.")
@config_flags(*_SECTIONS)
def bench(**options: object) -> int:
    """Measure throughput and latency of this stack, of its executor alone, or of any OpenAI-compatible server.

    The load is one of: a fixed number of requests in flight (--concurrency), Poisson arrivals (--rate), the times of a
    trace (--trace). The status is 1 when a request failed.
    """
    return run(msgspec.convert(options, BenchOptions))


def run(options: BenchOptions) -> int:
    """Run a benchmark, print its result, and return the exit status. Raises UserError."""
    from noria.cli.bench.arrivals import ClosedLoop
    from noria.cli.bench.plot import check_plottable, draw
    from noria.cli.bench.report import BenchReport, render_table, report_rows
    from noria.cli.bench.statistics import parse_objective, summarize

    objective: LatencyObjective | None = parse_objective(options.slo) if options.slo else None
    if options.plot is not None:
        check_plottable(options.plot)
    load = _load(options)
    requests, workload, left_out = _requests(options)
    began = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    target, model, result = (_run_offline if options.offline else _run_online)(options, requests, load)
    report = BenchReport(
        noria=importlib.metadata.version("noria"),
        began=began,
        target=target,
        model=model,
        workload=workload,
        load=load,
        temperature=options.temperature,
        warmup=options.warmup,
        left_out=left_out,
        client_cpu=result.client_cpu,
        summary=summarize(result.timelines, objective),
        rows=report_rows(result.timelines),
    )
    encoded = msgspec.json.format(msgspec.json.encode(report), indent=1)
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_bytes(encoded + b"\n")
    if options.plot is not None:
        options.plot.parent.mkdir(parents=True, exist_ok=True)
        in_words = f"{load.in_flight} in flight" if isinstance(load, ClosedLoop) else workload
        draw(options.plot, f"{target}, {model}: {in_words}", result.timelines)
    click.echo(encoded.decode() if options.as_json else render_table(report))
    return int(report.summary.completed < report.summary.requests)


def _load(options: BenchOptions) -> "LoadPattern":
    from noria.cli.bench.arrivals import ClosedLoop, PoissonArrivals, TraceReplay

    if sum((options.rate is not None, options.trace is not None, options.concurrency is not None)) > 1:
        raise UserError("--concurrency, --rate and --trace are different loads; give one of them")
    if options.rate is not None:
        return PoissonArrivals(options.rate, options.seed)
    if options.trace is not None:
        return TraceReplay(options.speed)
    return ClosedLoop(options.concurrency or 32)


def _requests(options: BenchOptions) -> "tuple[list[BenchRequest], str, int]":
    """Return the requests, where they come from, and how many were left out."""
    from noria.cli.bench.workload import parse_lengths, read_trace, read_workload, synthetic_requests

    if options.trace is not None:
        if options.workload is not None:
            raise UserError("--trace and --workload are both workloads; give one of them")
        requests, left_out = read_trace(options.trace, options.requests, options.tokens_max, options.seed)
        return requests, f"{len(requests)} of {options.trace.name}", left_out
    if options.workload is not None:
        requests = read_workload(options.workload, options.skip, options.requests)
        return requests, f"{len(requests)} of {options.workload.name}", 0
    prompt, output = parse_lengths(options.input_tokens), parse_lengths(options.output_tokens)
    requests = synthetic_requests(options.requests or 64, prompt, output, options.seed)
    return requests, f"{len(requests)} made up, {options.input_tokens} in, {options.output_tokens} out", 0


def _run_online(
    options: BenchOptions, requests: "Sequence[BenchRequest]", load: "LoadPattern"
) -> "tuple[str, str, LoadResult]":
    import asyncio

    import uvloop

    from noria.cli.bench.load_driver import run_load

    async def measure() -> "tuple[str, str, LoadResult]":
        name, target = _target(options)
        try:
            model = await target.describe()
            if warmup := _warmup(options, requests):
                await run_load(target, *warmup, options.timeout_s)
            with progress_line(len(requests)) as on_ended:
                result = await run_load(target, requests, load, options.timeout_s, on_ended)
        finally:
            await target.close()
        return name, model, result

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(measure())


def _target(options: BenchOptions) -> "tuple[str, Target]":
    if options.url is not None:
        from noria.cli.bench.targets.http_target import HttpTarget, HttpTargetSettings

        try:
            extra = msgspec.json.decode(options.extra_body, type=dict[str, object])
        except msgspec.DecodeError as error:
            raise UserError(f"--extra-body must be a JSON object: {error}") from error
        return options.url, HttpTarget(
            HttpTargetSettings(
                options.url,
                options.endpoint,
                options.served_model,
                options.temperature,
                options.ignore_eos,
                options.api_key,
                extra,
            )
        )
    from noria.cli.bench.targets.mailbox_target import MailboxTarget
    from noria.shared.actor.curve import PUBLIC, configured_curve_keys
    from noria.shared.actor.endpoints import public_mailbox

    runtime = settings().runtime
    mailbox, keys = public_mailbox(runtime), configured_curve_keys(runtime)
    curve = keys.curve_to(PUBLIC, keys.tools_owner()) if keys is not None else None
    chat = options.endpoint == "chat"
    return "ZeroMQ", MailboxTarget(
        mailbox, curve, temperature=options.temperature, ignore_eos=options.ignore_eos, chat=chat
    )


def _run_offline(
    options: BenchOptions, requests: "Sequence[BenchRequest]", load: "LoadPattern"
) -> "tuple[str, str, LoadResult]":
    from noria.cli.bench.offline import OfflineEngine
    from noria.shared.telemetry.log import configure

    if options.url is not None:
        raise UserError("--offline and --url are different targets; give one of them")
    config = settings()
    configure(msgspec.structs.replace(config.log, level="warning"))
    offline = OfflineEngine(config)
    try:
        if warmup := _warmup(options, requests):
            offline.run(*warmup, temperature=options.temperature)
        with progress_line(len(requests)) as on_ended:
            return (
                "offline",
                offline.model,
                offline.run(requests, load, temperature=options.temperature, on_ended=on_ended),
            )
    finally:
        offline.close()


def _warmup(
    options: BenchOptions, requests: "Sequence[BenchRequest]"
) -> "tuple[list[BenchRequest], LoadPattern] | None":
    from noria.cli.bench.arrivals import ClosedLoop
    from noria.cli.bench.workload import similar_requests

    if not options.warmup:
        return None
    return similar_requests(requests, options.warmup, options.seed), ClosedLoop(
        min(options.warmup, options.concurrency or options.warmup)
    )
