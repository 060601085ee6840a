"""Flags for sampling and requests, the client, and the output to the terminal of `noria generate` and `noria chat`."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from noria.proto.sampling import Bounds, SamplingParameter, parameters
from noria.shared.actor.endpoints import public_mailbox
from noria.shared.config.config import RuntimeSettings
from noria.shared.errors import UserError

if TYPE_CHECKING:
    from noria.client import Client, Delta
    from noria.client.generate_request import Options
    from noria.client.results import Finish

_OPTIONS_KEY: Final = "noria.sampling"
_Command = TypeVar("_Command", bound=Callable[..., object])

_RANGE_SHOWN_MAX: Final = 2**32

API_KEY_VARIABLE: Final = "NORIA_API_KEY"
# Flag, name of the option, type, help; where a flag is absent the server's default holds.
_REQUEST_FLAGS: Final[tuple[tuple[str, str, click.ParamType[Any], str], ...]] = (
    (
        "--api-key",
        "credential",
        click.STRING,
        f"API key, if the stack has tenants; also read from {API_KEY_VARIABLE}.",
    ),
    (
        "--class",
        "traffic_class",
        click.STRING,
        "Traffic class: interactive, standard, batch or another configured one.",
    ),
    ("--ttl-first-ms", "ttl_first_ms", click.IntRange(min=1), "Longest time to the first token."),
    ("--ttl-ms", "ttl_ms", click.IntRange(min=1), "Longest time to the end of the answer."),
    ("--model", "model", click.STRING, "Model name; the served model where absent."),
)


class _LogitBiasType(click.ParamType[tuple[int, float]]):
    """The type of --logit-bias: a token id and what is added to its logit."""

    name = "ID=BIAS"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, float]:
        """Parse ID=BIAS."""
        token, _, bias = str(value).partition("=")
        try:
            return int(token), float(bias)
        except ValueError:
            self.fail(f"{value!r} is not a token id and a number, as in 42=-1.5", param, ctx)


def sampling_flags(command: _Command) -> _Command:
    """Add the flags of sampling and of requests to a command, which reads their values with `generation_options()`."""

    def store(context: click.Context, parameter: click.Parameter, value: object) -> None:
        if value is not None and value != ():
            context.meta.setdefault(_OPTIONS_KEY, {})[parameter.name] = value

    command = click.option(
        "--logit-bias",
        multiple=True,
        type=_LogitBiasType(),
        expose_value=False,
        callback=store,
        help="ID=BIAS: add BIAS, -100 to 100, to a token's logit; may be repeated.",
    )(command)
    command = click.option(
        "--stop", multiple=True, expose_value=False, callback=store, help="End before this text; may be repeated."
    )(command)
    numbers = [
        (_flag_name(each), each.name, _flag_type(each), each.description)
        for each in parameters().values()
        if each.scalar
    ]
    for flag, name, kind, text in reversed((*_REQUEST_FLAGS, *numbers)):
        command = click.option(flag, name, type=kind, expose_value=False, callback=store, help=text)(command)
    return command


def _flag_name(parameter: SamplingParameter) -> str:
    return f"--{parameter.name.replace('_', '-')}"


def _flag_type(parameter: SamplingParameter) -> click.ParamType[Any]:
    """The type of a number's flag, with the range that the parameter's definition gives it."""
    bounds = parameter.bounds or Bounds(0)
    low, exclusive = (bounds.low, False) if bounds.above is None else (bounds.above, True)
    if bounds.high is not None and bounds.high > _RANGE_SHOWN_MAX:
        return click.INT  # the range of 64-bit integers says nothing to a reader
    if parameter.integer:
        whole = [None if each is None else int(each) for each in (low, bounds.high)]
        return click.IntRange(whole[0], whole[1])
    return click.FloatRange(low, bounds.high, min_open=exclusive)


def generation_options() -> "Options":
    """Return the sampling and request options given to the running command."""
    options: Options = click.get_current_context().meta.get(_OPTIONS_KEY, {})
    return options


@contextmanager
def open_client(runtime: RuntimeSettings) -> Iterator["Client"]:
    """Yield a client of the stack in this runtime folder. Raises UserError for what goes wrong with it."""
    from noria.client import Client, ClientError, Unreachable
    from noria.shared.actor.curve import PUBLIC, configured_curve_keys

    endpoint, keys = public_mailbox(runtime), configured_curve_keys(runtime)
    curve = keys.curve_to(PUBLIC, keys.tools_owner()) if keys is not None else None
    try:
        with Client(endpoint, credential=os.environ.get(API_KEY_VARIABLE, ""), curve=curve) as client:
            yield client
    except Unreachable as error:
        raise UserError(f"nothing answers at {endpoint}; start it with `noria up` ({error})") from error
    except ClientError as error:
        raise UserError(str(error)) from error


def stream_to_terminal(deltas: Iterable["Delta"]) -> tuple[str, "Finish | None"]:
    """Write an answer to standard output as it arrives; returns the text and how it ended."""
    from noria.client import ClientError

    parts: list[str] = []
    finish = None
    try:
        for delta in deltas:
            parts.append(delta.text)
            sys.stdout.write(delta.text)
            sys.stdout.flush()
            finish = delta.finish or finish
    except ClientError:
        if parts:
            sys.stdout.write("\n")  # what went wrong begins a line of its own
            sys.stdout.flush()
        raise
    sys.stdout.write("\n")
    sys.stdout.flush()
    return "".join(parts), finish


def print_failure(finish: "Finish | None") -> int:
    """Print to standard error why an answer failed, if it did, and return the exit status."""
    if finish is not None and finish.reason in ("stop", "length"):
        return 0
    reason = finish.reason if finish is not None else "interrupted"
    detail = f": {finish.detail}" if finish is not None and finish.detail else ""
    click.echo(f"noria: the answer ended with {reason}{detail}", err=True)
    return 1
