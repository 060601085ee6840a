"""`noria bench`: how fast a server answers, under which load, and what its users would feel."""

import datetime
import importlib.metadata
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import click
import msgspec

from noria.cli.bench.progress import progress
from noria.cli.flags import config_flags, settings
from noria.shared.errors import UserError

if TYPE_CHECKING:
    from noria.cli.bench.arrivals import Load
    from noria.cli.bench.load_driver import Driven
    from noria.cli.bench.statistics import Promise
    from noria.cli.bench.targets.target import Target
    from noria.cli.bench.workload import Job

_SECTIONS: Final = ("model", "scheduler", "cache", "executor", "runtime")


class Wanted(msgspec.Struct, frozen=True):
    """The command's options, as click names them."""

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
@click.option("--url", help="OpenAI-compatible server to measure; this machine's stack over ZeroMQ where absent.")
@click.option("--offline", is_flag=True, help="Measure scheduler and executor in this process, without a server.")
@click.option("--endpoint", type=click.Choice(["completions", "chat"]), default="completions", show_default=True)
@click.option("--served-model", default="", help="Model name in requests to --url; its first one where absent.")
@click.option("--api-key", default="", help="Bearer token for --url.")
@click.option("--extra-body", default="{}", help="JSON object with more fields for each request to --url.")
@click.option("--workload", type=_FILE, help="JSONL file of prompts: lines with prompt and max_tokens.")
@click.option("--trace", type=_FILE, help="Replay the times and lengths of a trace: Azure's .csv or Mooncake's .jsonl.")
@click.option("--input-tokens", default="128", show_default=True, help="Made-up prompts: length, or a range 64:512.")
@click.option("--output-tokens", default="64", show_default=True, help="Made-up prompts: length of their answers.")
@click.option("--tokens-max", type=_NEW, help="Leave out requests of a trace with more tokens than this.")
@click.option("--skip", type=click.IntRange(min=0), default=0, help="Begin the workload file after so many requests.")
@click.option("--requests", type=_NEW, help="How many requests; all of a file or trace, else 64, where absent.")
@click.option("--concurrency", type=_NEW, help="Requests in flight at any time. [default: 32]")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Poisson arrivals, so many a second.")
@click.option(
    "--speed", type=click.FloatRange(min=0, min_open=True), default=1.0, help="Replay a trace so much faster."
)
@click.option("--temperature", type=click.FloatRange(min=0), default=0.0, show_default=True)
@click.option("--ignore-eos/--no-ignore-eos", default=True, help="Ask for answers of full length. [default: on]")
@click.option("--seed", type=int, default=0, show_default=True, help="Of made-up prompts and Poisson arrivals.")
@click.option("--warmup", type=click.IntRange(min=0), default=8, show_default=True, help="Other requests run before.")
@click.option(
    "--timeout-s", type=click.FloatRange(min=0, min_open=True), default=600.0, help="Longest wait for one answer."
)
@click.option("--slo", help="Count requests that keep objectives in ms, such as ttft:500,itl:50,e2e:8000.")
@click.option("--out", type=_FILE, help="Write the whole result to this JSON file.")
@click.option("--plot", type=_FILE, help="Draw the result to this .png or .svg file.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of the table.")
@config_flags(*_SECTIONS)
def bench(**options: object) -> int:
    """Measure throughput and latency of this stack, of its executor alone, or of any OpenAI-compatible server.

    The load is one of: a fixed number of requests in flight (--concurrency), Poisson arrivals (--rate), the times of a
    trace (--trace). The status is 1 when a request failed.
    """
    return run(msgspec.convert(options, Wanted))


def run(wanted: Wanted) -> int:
    """Do what the options say. Raises UserError."""
    from noria.cli.bench.arrivals import Closed
    from noria.cli.bench.plot import check_plottable, draw
    from noria.cli.bench.report import Report, rows, table
    from noria.cli.bench.statistics import parse_promise, summary

    promise: Promise | None = parse_promise(wanted.slo) if wanted.slo else None
    if wanted.plot is not None:
        check_plottable(wanted.plot)
    load = _load(wanted)
    jobs, workload, left_out = _jobs(wanted)
    began = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    target, model, driven = (_offline if wanted.offline else _online)(wanted, jobs, load)
    report = Report(
        noria=importlib.metadata.version("noria"),
        began=began,
        target=target,
        model=model,
        workload=workload,
        load=load,
        temperature=wanted.temperature,
        warmup=wanted.warmup,
        left_out=left_out,
        client_cpu=driven.client_cpu,
        summary=summary(driven.observed, promise),
        rows=rows(driven.observed),
    )
    encoded = msgspec.json.format(msgspec.json.encode(report), indent=1)
    if wanted.out is not None:
        wanted.out.parent.mkdir(parents=True, exist_ok=True)
        wanted.out.write_bytes(encoded + b"\n")
    if wanted.plot is not None:
        wanted.plot.parent.mkdir(parents=True, exist_ok=True)
        in_words = f"{load.in_flight} in flight" if isinstance(load, Closed) else workload
        draw(wanted.plot, f"{target}, {model}: {in_words}", driven.observed)
    click.echo(encoded.decode() if wanted.as_json else table(report))
    return int(report.summary.completed < report.summary.requests)


def _load(wanted: Wanted) -> "Load":
    from noria.cli.bench.arrivals import Closed, Poisson, Replay

    if sum((wanted.rate is not None, wanted.trace is not None, wanted.concurrency is not None)) > 1:
        raise UserError("--concurrency, --rate and --trace are different loads; give one of them")
    if wanted.rate is not None:
        return Poisson(wanted.rate, wanted.seed)
    if wanted.trace is not None:
        return Replay(wanted.speed)
    return Closed(wanted.concurrency or 32)


def _jobs(wanted: Wanted) -> "tuple[list[Job], str, int]":
    """The jobs, where they come from, and how many were left out."""
    from noria.cli.bench.workload import parse_lengths, read_trace, read_workload, synthetic

    if wanted.trace is not None:
        if wanted.workload is not None:
            raise UserError("--trace and --workload are both workloads; give one of them")
        jobs, left_out = read_trace(wanted.trace, wanted.requests, wanted.tokens_max, wanted.seed)
        return jobs, f"{len(jobs)} of {wanted.trace.name}", left_out
    if wanted.workload is not None:
        jobs = read_workload(wanted.workload, wanted.skip, wanted.requests)
        return jobs, f"{len(jobs)} of {wanted.workload.name}", 0
    prompt, output = parse_lengths(wanted.input_tokens), parse_lengths(wanted.output_tokens)
    jobs = synthetic(wanted.requests or 64, prompt, output, wanted.seed)
    return jobs, f"{len(jobs)} made up, {wanted.input_tokens} in, {wanted.output_tokens} out", 0


def _online(wanted: Wanted, jobs: "Sequence[Job]", load: "Load") -> "tuple[str, str, Driven]":
    import asyncio

    import uvloop

    from noria.cli.bench.load_driver import drive

    async def measure() -> "tuple[str, str, Driven]":
        name, target = _target(wanted)
        try:
            model = await target.describe()
            if warmup := _warmup(wanted, jobs):
                await drive(target, *warmup, wanted.timeout_s)
            with progress(len(jobs)) as tell:
                driven = await drive(target, jobs, load, wanted.timeout_s, tell)
        finally:
            await target.close()
        return name, model, driven

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(measure())


def _target(wanted: Wanted) -> "tuple[str, Target]":
    if wanted.url is not None:
        from noria.cli.bench.targets.http_target import HttpSettings, HttpTarget

        try:
            extra = msgspec.json.decode(wanted.extra_body, type=dict[str, object])
        except msgspec.DecodeError as error:
            raise UserError(f"--extra-body must be a JSON object: {error}") from error
        return wanted.url, HttpTarget(
            HttpSettings(
                wanted.url,
                wanted.endpoint,
                wanted.served_model,
                wanted.temperature,
                wanted.ignore_eos,
                wanted.api_key,
                extra,
            )
        )
    from noria.cli.bench.targets.mailbox_target import MailboxTarget
    from noria.shared.actor.curve import PUBLIC, keys_of
    from noria.shared.actor.endpoints import public_mailbox

    runtime = settings().runtime
    mailbox, keys = public_mailbox(runtime), keys_of(runtime)
    curve = keys.toward(PUBLIC, keys.asker()) if keys is not None else None
    chat = wanted.endpoint == "chat"
    return "ZeroMQ", MailboxTarget(
        mailbox, curve, temperature=wanted.temperature, ignore_eos=wanted.ignore_eos, chat=chat
    )


def _offline(wanted: Wanted, jobs: "Sequence[Job]", load: "Load") -> "tuple[str, str, Driven]":
    from noria.cli.bench.offline import Offline
    from noria.shared.telemetry.log import configure

    if wanted.url is not None:
        raise UserError("--offline and --url are different targets; give one of them")
    config = settings()
    configure(msgspec.structs.replace(config.log, level="warning"))
    offline = Offline(config)
    try:
        if warmup := _warmup(wanted, jobs):
            offline.run(*warmup, temperature=wanted.temperature)
        with progress(len(jobs)) as tell:
            return "offline", offline.model, offline.run(jobs, load, temperature=wanted.temperature, tell=tell)
    finally:
        offline.close()


def _warmup(wanted: Wanted, jobs: "Sequence[Job]") -> "tuple[list[Job], Load] | None":
    from noria.cli.bench.arrivals import Closed
    from noria.cli.bench.workload import like

    if not wanted.warmup:
        return None
    return like(jobs, wanted.warmup, wanted.seed), Closed(min(wanted.warmup, wanted.concurrency or wanted.warmup))
