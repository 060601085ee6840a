"""The interface between a service and the actor that runs it."""

from typing import Any, Protocol

import msgspec

from noria.proto.base import Header, Service
from noria.proto.lifecycle import State


class Shell(Protocol):
    """A service as its actor calls it; all calls come from the actor's one thread."""

    def receive(self, sender: Service, header: Header, body: msgspec.Struct) -> None:
        """Take one message of a peer that has joined."""

    def joined(self, peer: Service) -> None:
        """A peer has started or restarted and remembers nothing: send it everything it must know."""

    def lost(self, peer: Service) -> None:
        """A peer has been silent for `peer_timeout_s`."""

    def congested(self, peer: Service) -> None:
        """A message for this peer was not taken because its outbox is full."""

    def advance(self, now_ns: int) -> int | None:
        """Do this turn's work; return the monotonic time of the next wanted turn, or None for none."""

    def state(self) -> State:
        """The state for heartbeats and snapshots: STARTING until ready."""

    def progress(self) -> tuple[int, bool]:
        """How much work was done so far (steps or messages), and whether any is waiting or under way."""

    def snapshot(self) -> dict[str, Any]:
        """Counts and queues, in a form fit for JSON, for people and tests."""

    def drain(self, timeout_ms: int) -> None:
        """Take nothing new; finish what runs within `timeout_ms`."""

    def close(self) -> None:
        """Release everything; called once, when the actor stops."""
