"""`noria replay` runs a recorded event log through other policies; `noria why` explains what a request waited for."""

import subprocess
import sys
from pathlib import Path
from typing import Final

import click

from noria.cli.config_handover import environment_without_options
from noria.cli.flags import config_flags, settings
from noria.shared.config.policies import POLICY_NAMES

_ANSWER_S: Final = 5.0
_SIMULATION = "noria.services.scheduler.simulation"


@click.command()
@click.argument("log", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--policy", "policies", multiple=True, help=f"One of {', '.join(POLICY_NAMES)}; may be repeated.")
@click.option(
    "--slo", "objectives", multiple=True, metavar="CLASS:TTFT_MS[:ITL_MS]", help="Latency objective of a class."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def replay(log: Path, policies: tuple[str, ...], objectives: tuple[str, ...], as_json: bool) -> int:
    """Run a recorded LOG through other policies and compare latencies, attainment and throughput.

    `noria up --event-log LOG` records one. The device is simulated: its steps take as long as the recorded ones did on average.
    """
    arguments = [each for name in policies for each in ("--policy", name)]
    arguments += [each for text in objectives for each in ("--slo", text)]
    return _run("replay", str(log), *arguments, *(["--json"] if as_json else []))


@click.command()
@click.argument("request")
@click.option(
    "--log",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Read an event log instead of asking the running stack.",
)
@config_flags("runtime")
def why(request: str, log: Path | None) -> int:
    """Explain what a REQUEST waited for, and how long.

    REQUEST is its id, or its number in traces and logs; an event log has numbers only.
    """
    if log is not None:
        return _run("why", str(log), request)
    from noria.shared.actor.inspect import explain_request

    lines = explain_request(settings().runtime, request, _ANSWER_S)
    click.echo("\n".join(lines) if lines else f"nothing is known of request {request!r}")
    return 0 if lines else 1


def _run(*arguments: str) -> int:
    """Run the scheduler's simulation in a process of its own."""
    # -P: files of the working folder must not shadow modules.
    command = [sys.executable, "-P", "-m", _SIMULATION, *arguments]
    return subprocess.run(command, env=environment_without_options(), check=False).returncode  # noqa: S603 - our own interpreter and module
