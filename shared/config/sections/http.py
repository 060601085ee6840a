"""The options of section `[http]`."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from noria.shared.config.sections.flags import flags

GATEWAY_GRACE_S_MAX: Final = 86_400.0
"""A day: the longest that admission lets a client ask for."""


class HttpSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The HTTP front door."""

    address: Annotated[str, Meta(description="HOST:PORT to serve HTTP on.", extra=flags("--http"))] = "127.0.0.1:8000"
    body_bytes_max: Annotated[int, Meta(description="Largest accepted request body.", ge=1024)] = 4 * 1024 * 1024
    body_timeout_s: Annotated[float, Meta(description="How long a request body may take to arrive.", gt=0)] = 60.0
    connections_max: Annotated[int, Meta(description="Open connections; those beyond are answered 503.", ge=1)] = 8192
    drain_timeout_s: Annotated[
        float, Meta(description="How long open responses may finish when a gateway stops.", ge=0)
    ] = 20.0
    gateway_grace_s: Annotated[
        Annotated[float, Meta(gt=0, le=GATEWAY_GRACE_S_MAX)] | None,
        Meta(
            description="How long requests live on after their gateway was last heard; where absent as long as it takes to "
            "find that it hangs, to start another and to reach it: runtime.hang_timeout_s, the "
            "longest pause before a restart (10 s, or runtime.restart_pause_s) and runtime.peer_timeout_s together, the least."
        ),
    ] = None
