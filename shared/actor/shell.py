"""What a service is to the loop that runs it."""

from typing import Any, Protocol

import msgspec

from noria.proto.base import Header, Service
from noria.proto.lifecycle import State


class Shell(Protocol):
    """What a service is to its actor. All calls come from the actor's one thread."""

    def receive(self, sender: Service, header: Header, body: msgspec.Struct) -> None:
        """Take one message of a peer that has joined."""

    def joined(self, peer: Service) -> None:
        """A peer began a new life and remembers nothing: send it everything it must know."""

    def lost(self, peer: Service) -> None:
        """A peer has been silent for `peer_timeout_s`."""

    def congested(self, peer: Service) -> None:
        """A message for this peer was not taken because its outbox is full."""

    def advance(self, now_ns: int) -> int | None:
        """Do this turn's work; return the monotonic time of the next wanted turn, or None for none."""

    def state(self) -> State:
        """STARTING until ready."""

    def progress(self) -> tuple[int, bool]:
        """Work done so far, and whether work is waiting or under way."""

    def snapshot(self) -> dict[str, Any]:
        """Counts and queues for people and tests."""

    def drain(self, timeout_ms: int) -> None:
        """Take nothing new, finish what runs."""

    def close(self) -> None:
        """The actor stops: release everything."""
