"""The socket that HTTP is served on: bound here, or inherited from a supervisor that keeps it.

A supervisor that holds the socket too keeps the door open while nobody stands behind it: who connects between the death
of a gateway and its successor's start waits in the queue instead of being turned away.
"""

import os
import socket
from typing import Final

from noria.shared.errors import UserError

INHERITED: Final = "HTTP_LISTENER"
"""The variable that tells a gateway the number of the descriptor that it inherits."""

_BACKLOG: Final = 2048


def listen(host: str, port: int) -> socket.socket:
    """Bind the HTTP address, or take the inherited socket. Raises UserError naming the address and what to do."""
    number = os.environ.pop(INHERITED, "")
    if number.isdecimal():
        return socket.socket(fileno=int(number))
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        return socket.create_server((str(address[0]), port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise UserError(
            f"cannot serve HTTP on {host}:{port}: {error.strerror or error}; "
            "choose another address with --http HOST:PORT"
        ) from error


def address_of(listener: socket.socket, address: str) -> str:
    """HOST:PORT as configured, with the port that was found where 0 was asked for."""
    return f"{address.rpartition(':')[0]}:{listener.getsockname()[1]}"
