"""Decides which CURVE keys may connect to bound sockets, by ZeroMQ's authentication protocol (RFC 27, ZAP).

One authenticator for each ZeroMQ context. It sees keys, never messages.
"""

import socket as sockets
import threading
from collections.abc import Mapping
from typing import Final

import zmq
from zmq.utils import z85

from noria.shared.actor.curve import CurveKeys

_ENDPOINT: Final = "inproc://zeromq.zap.01"
_VERSION: Final = b"1.0"
_ANYBODY: Final = "anybody"


class CurveAuthenticator:
    """Admits or refuses connections by public key, in a thread of its own until closed.

    Raises zmq.ZMQError when the context has an authenticator already.
    """

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", keys: CurveKeys) -> None:
        self.keys = keys
        self._admitted: dict[str, Mapping[bytes, str] | None] = {}
        self._socket = context.socket(zmq.REP)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(_ENDPOINT)
        self._waker, self._wake = sockets.socketpair()
        self._thread = threading.Thread(target=self._run, name="curve", daemon=True)
        self._thread.start()

    def secure(self, socket: "zmq.Socket[bytes]", owner: str, admitted: Mapping[bytes, str] | None) -> None:
        """Make a socket that is not bound yet a CURVE server with `owner`'s keys.

        admitted: names by public key; everybody who has any key where None. Messages carry the name as `User-Id`.
        """
        pair = self.keys.key_pair(owner)
        self._admitted[owner] = admitted
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, pair.secret)
        socket.setsockopt(zmq.ZAP_DOMAIN, owner.encode())

    def close(self) -> None:
        """Stop the thread; new connections are refused from then on."""
        self._waker.close()
        self._thread.join()
        self._socket.close(0)
        self._wake.close()

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._wake.fileno(), zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if self._wake.fileno() in ready:
                return
            self._socket.send_multipart(zap_reply(self._socket.recv_multipart(), self._admitted))


def zap_reply(frames: list[bytes], admitted: Mapping[str, Mapping[bytes, str] | None]) -> list[bytes]:
    """The reply frames to one ZAP request. admitted: names by public key for each domain; None admits any key."""
    request = frames[1] if len(frames) > 1 else b""
    name = _admitted_name(frames, admitted)
    if name is None:
        return [_VERSION, request, b"400", b"this key is not admitted here", b"", b""]
    return [_VERSION, request, b"200", b"OK", name.encode(), b""]


def _admitted_name(frames: list[bytes], admitted: Mapping[str, Mapping[bytes, str] | None]) -> str | None:
    if len(frames) != 7 or frames[0] != _VERSION or frames[5] != b"CURVE" or len(frames[6]) != 32:
        return None
    domain = frames[2].decode("ascii", "replace")
    if domain not in admitted:
        return None
    names = admitted[domain]
    return _ANYBODY if names is None else names.get(z85.encode(frames[6]))
