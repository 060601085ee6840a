"""The socket that HTTP is served on: bound here, or inherited from a supervisor that keeps it.

A supervisor that holds the socket too keeps it open while no gateway runs: clients that connect between the death
of a gateway and its successor's start wait in the queue instead of being refused. A supervisor that takes over the gateway
of one that was killed asks it for the socket, through another one in the runtime folder, which is its owner's alone.
"""

import contextlib
import os
import socket
from pathlib import Path
from typing import Final

from noria.shared.errors import UserError

INHERITED: Final = "HTTP_LISTENER"
"""The variable that tells a gateway the number of the descriptor that it inherits."""

_BACKLOG: Final = 2048
_HANDOVER_SOCKET: Final = "door.sock"
_ANSWER_S: Final = 2.0


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


class ListenerHandover:
    """Passes the HTTP socket to a supervisor that asks for it in the runtime folder.

    Call `answer` whenever `socket` can be read. available: whether a supervisor can ask; not where there is no such
    folder, or its path is too long for a socket.
    """

    def __init__(self, listener: socket.socket, folder: Path) -> None:
        self.available = False
        self._listener = listener
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.setblocking(False)
        path = folder / _HANDOVER_SOCKET
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
            self.socket.bind(str(path))
            path.chmod(0o600)
            self.socket.listen(1)
            self.available = True

    def answer(self) -> None:
        """Accept one connection and send it the HTTP socket's descriptor."""
        with contextlib.suppress(OSError):
            asking, _ = self.socket.accept()
            with asking:
                socket.send_fds(asking, [b"\0"], [self._listener.fileno()])

    def close(self) -> None:
        """Stop answering."""
        self.socket.close()


def request_listener(folder: Path) -> socket.socket | None:
    """The socket of the gateway that lives in a runtime folder; None when it does not answer within two seconds."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(_ANSWER_S)
        asking.connect(str(folder / _HANDOVER_SOCKET))
        _, descriptors, _, _ = socket.recv_fds(asking, 1, 1)
        if descriptors:
            os.set_inheritable(descriptors[0], False)
            return socket.socket(fileno=descriptors[0])
    return None


def address_of(listener: socket.socket, address: str) -> str:
    """HOST:PORT as configured, with the port that was found where 0 was asked for."""
    return f"{address.rpartition(':')[0]}:{listener.getsockname()[1]}"
