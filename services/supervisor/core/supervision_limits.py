"""The time limits and restart limits that the supervisor applies to its children."""

import msgspec


class SupervisionLimits(msgspec.Struct, frozen=True):
    """Time limits in nanoseconds, and how often a child may die.

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
