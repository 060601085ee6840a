"""The options of section `[limits]`."""

from typing import Annotated

import msgspec
from msgspec import Meta


class LimitSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Hard limits on what comes in from outside."""

    message_bytes_max: Annotated[int, Meta(description="Largest message on a public mailbox.", ge=4096)] = (
        8 * 1024 * 1024
    )
    requests_max: Annotated[int, Meta(description="Accepted, unfinished requests.", ge=1)] = 8192
    n_max: Annotated[int, Meta(description="Choices of one request.", ge=1)] = 16
    stop_strings_max: Annotated[int, Meta(description="Stop strings of one request.", ge=0)] = 16
    messages_max: Annotated[int, Meta(description="Messages of one chat.", ge=1)] = 1024
    tokenizing_characters_max: Annotated[
        int, Meta(description="Text that may wait for the tokenizer, of all clients together.", ge=4096)
    ] = 64 * 1024 * 1024
