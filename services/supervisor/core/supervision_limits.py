"""How patient a supervisor is."""

import msgspec


class Limits(msgspec.Struct, frozen=True):
    """All times in nanoseconds.

    start: until all children are ready, and later until one that was started again is. stop: how long one child may take
    to stop. drain: how long accepted requests may go on at the end. hang: silence, or a step without an end, for which a
    child is killed. pause, pause_max: before the second start in a row, and the longest. deaths: in a row, without a step
    in between, after which everything stops.
    """

    start_ns: int
    stop_ns: int
    drain_ns: int
    hang_ns: int
    pause_ns: int
    pause_max_ns: int
    deaths: int
