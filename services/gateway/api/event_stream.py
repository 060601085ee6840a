"""Server-sent events as bytes."""

import re
from typing import Final

# Line ends to Unicode, and to clients that split decoded text by it (httpx's `iter_lines` among them), though not to the
# format; as escapes they mean the same within JSON. The other such characters are escaped in JSON anyway.
_LINE_ENDS: Final = re.compile(rb"\xc2\x85|\xe2\x80[\xa8\xa9]")
_ESCAPES: Final = {b"\xc2\x85": rb"\u0085", b"\xe2\x80\xa8": rb"\u2028", b"\xe2\x80\xa9": rb"\u2029"}


def event(data: bytes, position: str = "") -> bytes:
    """One event whose data is JSON in one line; position becomes its id, where there is one."""
    name = b"id: " + position.encode() + b"\n" if position else b""
    return name + b"data: " + _LINE_ENDS.sub(lambda found: _ESCAPES[found[0]], data) + b"\n\n"
