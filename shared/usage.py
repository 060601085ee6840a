"""The usage table on disk: one row for each tenant, class and hour, to which figures are added.

Admission writes the rows, `noria usage` reads them; both do so with the statements here. The file is SQLite, in the state
folder, readable by its owner alone.
"""

import sqlite3
from pathlib import Path
from typing import Final

import msgspec

from noria.shared.actor.endpoints import state_dir
from noria.shared.config.config import RuntimeSettings
from noria.shared.errors import UserError

DATABASE: Final = "noria.sqlite"
HOUR_S: Final = 3600
COLUMNS: Final = (
    "requests",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "computed_tokens",
    "wasted_tokens",
    "block_us",
)
SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS usage (tenant TEXT NOT NULL, class TEXT NOT NULL, hour INTEGER NOT NULL, "
    + ", ".join(f"{name} INTEGER NOT NULL" for name in COLUMNS)
    + ", PRIMARY KEY (tenant, class, hour)) WITHOUT ROWID"
)
ADD: Final = (
    f"INSERT INTO usage VALUES (?, ?, ?, {', '.join('?' for _ in COLUMNS)}) "  # noqa: S608 - our own names
    f"ON CONFLICT DO UPDATE SET {', '.join(f'{name} = {name} + excluded.{name}' for name in COLUMNS)}"
)
_READ: Final = (
    f"SELECT tenant, class, {', '.join(f'sum({name})' for name in COLUMNS)} FROM usage "  # noqa: S608 - our own names
    "WHERE hour >= ? AND (? = '' OR tenant = ?) GROUP BY tenant, class ORDER BY tenant, class"
)


class TenantUsage(msgspec.Struct, frozen=True):
    """Usage of one tenant in one class: requests, tokens, and cache_block_s, cache blocks held times seconds."""

    tenant: str
    traffic_class: str
    requests: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    computed_tokens: int
    wasted_tokens: int
    cache_block_s: float


def database_path(settings: RuntimeSettings) -> Path:
    """The path of the usage database, whether or not it exists."""
    return state_dir(settings) / DATABASE


def read(path: Path, *, tenant: str = "", since_unix_s: int = 0) -> list[TenantUsage]:
    """Usage from the hour of `since_unix_s` on, by tenant and class; of one tenant where it is named.

    Raises UserError when there is no such file or it cannot be read.
    """
    if not path.exists():
        raise UserError(f"nothing has been recorded in {path}; name the stack's --state-dir or --runtime-dir")
    try:
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5)
        try:
            rows = connection.execute(_READ, (since_unix_s // HOUR_S * HOUR_S, tenant, tenant)).fetchall()
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise UserError(f"cannot read {path}: {error}") from error
    figures = ((*row[:-1], round(row[-1] / 1e6, 3)) for row in rows)
    return [
        msgspec.convert(dict(zip(TenantUsage.__struct_fields__, each, strict=True)), TenantUsage) for each in figures
    ]
