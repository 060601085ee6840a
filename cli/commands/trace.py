"""`noria trace`: prints the trace of a request as a tree, or the last steps for a trace viewer, from the services' memory."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import click
import msgspec

from noria.cli.flags import config_flags, settings
from noria.proto.base import Service
from noria.shared.config.config import RuntimeSettings
from noria.shared.errors import UserError
from noria.shared.telemetry.step_timeline import STEPS_KEPT, StepTiming, chrome_trace

_ANSWER_S: Final = 5.0
_HIDDEN: Final = ("noria.request", "noria.choice")


class TraceSpan(msgspec.Struct, frozen=True):
    """One span of a trace, as a service answers it; end_ns is 0 while the span is under way."""

    name: str
    trace: str
    span: str
    parent: str
    begin_ns: int
    end_ns: int
    error: str = ""
    attributes: dict[str, Any] = {}
    events: tuple[tuple[str, int, dict[str, Any]], ...] = ()
    links: int = 0


@click.command()
@click.argument("request", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--steps", is_flag=True, help="Print the executor's last steps instead, for chrome://tracing and Perfetto."
)
@click.option("--last", type=click.IntRange(1), default=STEPS_KEPT, help="With --steps: how many steps.")
@config_flags("runtime")
def trace(request: str | None, as_json: bool, steps: bool, last: int) -> int:
    """Print the trace of REQUEST (its id, number or trace id) as a tree with durations.

    Each process keeps its last `telemetry.spans_kept` spans; older spans, and traces that were not sampled, are missing.
    """
    if steps:
        click.echo(msgspec.json.encode(chrome_trace(step_times(settings().runtime, last))))
        return 0
    if request is None:
        raise click.UsageError("name a request, or ask for --steps")
    found = find_spans(settings().runtime, request)
    if not any(found.values()):
        raise UserError(f"no process remembers a trace of request {request!r}: it was not sampled, or is too old")
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found)))
    else:
        click.echo("\n".join(render_tree(found)))
    return 0


def step_times(runtime: RuntimeSettings, last: int) -> list[StepTiming]:
    """Return the timings of the executor's last steps. Raises UserError when the executor does not answer."""
    from noria.shared.actor.inspect import inspect

    answer = inspect(runtime, Service.EXECUTOR, _ANSWER_S, str(last), "steps")
    if answer is None:
        raise UserError("the executor does not answer; `noria ps` lists the services")
    return msgspec.json.decode(answer.json, type=list[StepTiming])


def find_spans(runtime: RuntimeSettings, request: str) -> dict[Service, list[TraceSpan]]:
    """Return the spans of all traces that a request is in, by the service that recorded them."""
    from noria.shared.actor.inspect import request_numbers

    numbers = request_numbers(runtime, request, _ANSWER_S)
    ids = {each.trace for name in numbers for spans in _spans_by_service(runtime, name).values() for each in spans}
    if len(request) == 32:
        ids.add(request)
    found: dict[Service, list[TraceSpan]] = {service: [] for service in Service}
    for each in sorted(ids):
        for service, spans in _spans_by_service(runtime, each).items():
            found[service] += spans
    return {service: spans for service, spans in found.items() if spans}


def _spans_by_service(runtime: RuntimeSettings, name: str) -> dict[Service, list[TraceSpan]]:
    from noria.shared.actor.inspect import inspect_all

    services = tuple(each for each in Service if each is not Service.SUPERVISOR)
    answers = inspect_all(runtime, services, _ANSWER_S, name, "spans")
    return {
        service: msgspec.json.decode(answer.json, type=list[TraceSpan] | None) or []
        for service, answer in answers.items()
    }


def render_tree(found: Mapping[Service, Sequence[TraceSpan]]) -> Iterator[str]:
    """Yield the lines of all traces; times count from the beginning of each trace."""
    entries = [(service, each) for service, spans in found.items() for each in spans]
    for name in dict.fromkeys(each.trace for _, each in entries):
        mine = sorted((each for each in entries if each[1].trace == name), key=lambda each: each[1].begin_ns)
        known = {each.span for _, each in mine}
        yield f"trace {name}"
        start_ns = mine[0][1].begin_ns
        for service, each in mine:
            if each.parent not in known:
                yield from _render_span(service, each, mine, start_ns, 0)


def _render_span(
    service: Service, span: TraceSpan, spans: Sequence[tuple[Service, TraceSpan]], start_ns: int, depth: int
) -> Iterator[str]:
    head = f"{'  ' * depth}{span.name}"
    took = f"{(span.end_ns - span.begin_ns) / 1e6:10.1f} ms" if span.end_ns else f"{'under way':>13}"
    shown = [f"{name}={_attribute_text(value)}" for name, value in span.attributes.items() if name not in _HIDDEN]
    if span.links:
        shown.append(f"linked with {span.links}")
    if span.error:
        shown.append(f"failed: {span.error}")
    at = f"{(span.begin_ns - start_ns) / 1e6:10.1f} ms"
    yield f"{head:<32}{service.value:<12}{at}{took}  {'  '.join(shown)}".rstrip()
    for name, at_ns, attributes in span.events:
        given = "  ".join(f"{key}={_attribute_text(value)}" for key, value in attributes.items())
        yield f"{'  ' * (depth + 1)}· {name:<{max(1, 40 - 2 * depth)}}{(at_ns - start_ns) / 1e6:10.1f} ms  {given}".rstrip()
    for other, each in spans:
        if each.parent == span.span:
            yield from _render_span(other, each, spans, start_ns, depth + 1)


def _attribute_text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
