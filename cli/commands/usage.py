"""`noria usage`: prints what each tenant used, read from the database that admission writes."""

import re
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Final

import click
import msgspec

from noria.cli.flags import config_flags, settings
from noria.shared.errors import UserError
from noria.shared.usage import TenantUsage, database_path, read

_UNITS_S: Final = {"h": 3600, "d": 86_400, "w": 604_800}
_HEAD: Final = (
    "tenant", "class", "requests", "prompt", "cached", "output", "computed", "wasted", "cache block-s",
)  # fmt: skip


@click.command()
@click.option("--tenant", default="", help="Only this tenant.")
@click.option(
    "--since", default="", help="Only usage since then, in whole hours: 24h, 7d, 4w, or a date like 2026-11-30."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@config_flags("runtime")
def usage(tenant: str, since: str, as_json: bool) -> None:
    """Print each tenant's usage in requests and tokens, by class."""
    rows = read(database_path(settings().runtime), tenant=tenant, since_unix_s=parse_since(since, int(time.time())))
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(rows)))
    else:
        click.echo(render_usage(rows), nl=False)


def parse_since(text: str, now_unix_s: int) -> int:
    """Parse a duration before now or a local date into seconds since 1970; 0 for an empty text. Raises UserError."""
    if not text:
        return 0
    if (duration := re.fullmatch(r"(\d{1,6})([hdw])", text)) is not None:
        return max(0, now_unix_s - int(duration[1]) * _UNITS_S[duration[2]])
    try:
        return max(0, int(datetime.fromisoformat(text).timestamp()))
    except (ValueError, OverflowError) as error:
        raise UserError(f"--since {text!r} is neither a duration like 24h, 7d or 4w nor a date") from error


def render_usage(rows: Sequence[TenantUsage]) -> str:
    """Return usage as a table, numbers aligned to the right."""
    lines = [_HEAD, *(tuple(str(value) for value in msgspec.structs.astuple(row)) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEAD))]
    shown = [
        "  ".join(
            value.ljust(width) if column < 2 else value.rjust(width)
            for column, (value, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    ]
    return "\n".join(line.rstrip() for line in shown) + "\n"
