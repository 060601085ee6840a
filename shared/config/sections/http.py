"""The options of section `[http]`."""

from typing import Annotated

import msgspec
from msgspec import Meta

from noria.shared.config.sections.flags import flags


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
        float, Meta(description="How long requests live on after their gateway was last heard.", ge=0, le=86_400)
    ] = 15.0
