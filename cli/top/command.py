"""`noria top`: shows in the terminal what the stack does, as the web console does in a browser."""

import sys
import time
from typing import TYPE_CHECKING, Final

import click
import msgspec

from noria.cli.flags import config_flags, settings
from noria.proto.base import Service
from noria.shared.config.config import RuntimeSettings
from noria.shared.errors import UserError

if TYPE_CHECKING:
    from noria.cli.top.view import TopScreen
    from noria.shared.actor.inspect import Inspector
    from noria.shared.telemetry.recent_latencies import RecentLatencies

_ANSWER_S: Final = 0.5
_FIRST_ANSWER_S: Final = 2.0  # at first, a busy scheduler is not taken for an absent one


@click.command()
@click.option(
    "--interval", default=0.5, show_default=True, type=click.FloatRange(0.1, 60), help="Seconds between updates."
)
@click.option("--once", is_flag=True, help="Print the state after one interval, and end.")
@config_flags("runtime")
def top(interval: float, once: bool) -> None:
    """Show slots by step, queues with their shares, latencies and services, live. Ctrl-C ends it."""
    from rich.console import Console
    from rich.live import Live

    from noria.cli.top.view import TopScreen
    from noria.shared.actor.inspect import Inspector
    from noria.shared.telemetry.recent_latencies import RecentLatencies

    runtime = settings().runtime
    inspector, latency, screen = Inspector(runtime), RecentLatencies(), TopScreen()
    try:
        _refresh(inspector, latency, screen, runtime, _FIRST_ANSWER_S)
        if not screen.answered:
            raise UserError("the scheduler does not answer: is the stack up, and is --runtime-dir the same?")
        console = Console()
        if once or not sys.stdout.isatty():
            time.sleep(interval)
            _refresh(inspector, latency, screen, runtime, _FIRST_ANSWER_S)
            console.print(screen.render(console.width, console.height))
            return
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(screen.render(console.width, console.height), refresh=True)
                time.sleep(interval)
                _refresh(inspector, latency, screen, runtime)
    finally:
        inspector.close()


def _refresh(
    inspector: "Inspector",
    latency: "RecentLatencies",
    screen: "TopScreen",
    runtime: RuntimeSettings,
    scheduler_s: float = _ANSWER_S,
) -> None:
    """Ask all services for their state. scheduler_s: longest wait for the scheduler, whose answer fills most of the screen."""
    from noria.cli.top.view import LiveReply
    from noria.shared.telemetry.metrics import decode_values

    answer = inspector.ask((Service.SCHEDULER,), "live", screen.since, scheduler_s).get(Service.SCHEDULER)
    screen.update(msgspec.json.decode(answer.json, type=LiveReply) if answer is not None else None, time.monotonic())
    metrics = inspector.ask((Service.ADMISSION,), "metrics", "", _ANSWER_S).get(Service.ADMISSION)
    if metrics is not None:
        latency.add(decode_values(metrics.json), time.monotonic())
    screen.latency = latency.rows()
    services = [each for each in Service if each is not Service.SUPERVISOR or runtime.transport == "ipc"]
    screen.services = inspector.ask(services, "who", "", _ANSWER_S)
