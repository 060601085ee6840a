"""`noria top`: what the stack does, in the terminal; the essentials of the console over ssh."""

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
    from noria.cli.top.view import Picture
    from noria.shared.actor.inspect import Inspector
    from noria.shared.telemetry.recent_latencies import RecentLatencies

_ANSWER_S: Final = 0.5
_FIRST_ANSWER_S: Final = 2.0  # one that is busy is not taken for absent at the first look


@click.command()
@click.option(
    "--interval", default=0.5, show_default=True, type=click.FloatRange(0.1, 60), help="Seconds between looks."
)
@click.option("--once", is_flag=True, help="Look for one interval, print, and end.")
@config_flags("runtime")
def top(interval: float, once: bool) -> None:
    """Watch the stack: slots by step, queues with their shares, latencies, services. Ctrl-C ends it."""
    from rich.console import Console
    from rich.live import Live

    from noria.cli.top.view import Picture
    from noria.shared.actor.inspect import Inspector
    from noria.shared.telemetry.recent_latencies import RecentLatencies

    runtime = settings().runtime
    inspector, latency, picture = Inspector(runtime), RecentLatencies(), Picture()
    try:
        _look(inspector, latency, picture, runtime, _FIRST_ANSWER_S)
        if not picture.answered:
            raise UserError("the scheduler does not answer: is the stack up, and is --runtime-dir the same?")
        console = Console()
        if once or not sys.stdout.isatty():
            time.sleep(interval)
            _look(inspector, latency, picture, runtime, _FIRST_ANSWER_S)
            console.print(picture.shown(console.width, console.height))
            return
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(picture.shown(console.width, console.height), refresh=True)
                time.sleep(interval)
                _look(inspector, latency, picture, runtime)
    finally:
        inspector.close()


def _look(
    inspector: "Inspector",
    latency: "RecentLatencies",
    picture: "Picture",
    runtime: RuntimeSettings,
    scheduler_s: float = _ANSWER_S,
) -> None:
    """Ask everybody. scheduler_s: how long the scheduler is waited for, whose answer is most of the picture."""
    from noria.cli.top.view import Told
    from noria.shared.telemetry.metrics import decode_values

    answer = inspector.ask((Service.SCHEDULER,), "live", picture.since, scheduler_s).get(Service.SCHEDULER)
    picture.take(msgspec.json.decode(answer.json, type=Told) if answer is not None else None, time.monotonic())
    metrics = inspector.ask((Service.ADMISSION,), "metrics", "", _ANSWER_S).get(Service.ADMISSION)
    if metrics is not None:
        latency.add(decode_values(metrics.json), time.monotonic())
    picture.latency = latency.rows()
    services = [each for each in Service if each is not Service.SUPERVISOR or runtime.transport == "ipc"]
    picture.services = inspector.ask(services, "who", "", _ANSWER_S)
