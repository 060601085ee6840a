"""The options of section `[log]`."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from noria.shared.config.sections.flags import flags


class LogSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Log events, written to standard error."""

    format: Annotated[
        Literal["auto", "console", "json"],
        Meta(description="auto is console on a terminal, json elsewhere.", extra=flags("--log-format")),
    ] = "auto"
    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(description="Least level written.", extra=flags("--log-level")),
    ] = "info"
