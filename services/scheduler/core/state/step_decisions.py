"""The record of what was decided in each step, and why others did not go: waiting is explained from it.

The planner notes who was passed over for what (`StepBuilder.passed`) and hands in each step. Two bounded records follow from it:
the last steps, and since when arrivals of which class were held up by what. Whoever waits behind the first of its class waits
for the same thing, so that the second record explains every waiting request at no cost per request. Decides nothing itself.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from noria.proto.base import Stream

STEPS_KEPT: Final = 512
GATES_KEPT: Final = 4096


class WaitReason(IntEnum):
    """Why a request got nothing in a step. `text` says it to people."""

    SLOTS = 1
    TOKENS = 2
    READS = 3
    BLOCKS = 4
    MARGIN = 5
    PREFIX = 6
    DETOKENIZER = 7
    TURN = 8
    RESERVED = 9
    RUNNING_FIRST = 10
    RESULT = 11
    EXECUTOR = 12

    @property
    def text(self) -> str:
        """What a request that is passed over waits for, in words."""
        return _TEXTS[self]


_TEXTS: Final = {
    WaitReason.SLOTS: "a slot: as many requests ran as a step may have",
    WaitReason.TOKENS: "the steps' token budget, which others used up",
    WaitReason.READS: "the steps' budget of cached tokens, which others used up",
    WaitReason.BLOCKS: "blocks of the cache, which others held",
    WaitReason.MARGIN: "blocks of the cache beyond the margin that is kept for running requests",
    WaitReason.PREFIX: "a prefix that another request was computing",
    WaitReason.DETOKENIZER: "the detokenizer to look for stop strings",
    WaitReason.TURN: "its turn: other tenants or classes had been served less",
    WaitReason.RESERVED: "capacity that is not reserved for another class",
    WaitReason.RUNNING_FIRST: "running requests that lacked blocks and go first",
    WaitReason.RESULT: "the result of its last step",
    WaitReason.EXECUTOR: "an executor: there was none",
}


@dataclass(frozen=True, slots=True)
class PassedOver:
    """A request that a step passed over; those behind it in the same order were not looked at."""

    stream: Stream
    reason: WaitReason


@dataclass(frozen=True, slots=True)
class StepDecision:
    """One step: its budget, what was spent, on whom, and who was passed over.

    decodes: sequences that continue by one token. chunks: tokens of prompts, by stream. admitted: streams that were
    given a slot. Preemptions are reported as phases of their requests.
    """

    epoch: int
    number: int
    at_ns: int
    tokens_max: int
    tokens: int
    cache_tokens: int
    decodes: int
    chunks: tuple[tuple[Stream, int], ...]
    admitted: tuple[Stream, ...]
    passed: tuple[PassedOver, ...]
    running: int
    waiting: int


@dataclass(frozen=True, slots=True)
class BlockedClass:
    """From `at_ns` on, arrivals of a class ("" for all) were held up by `reason`, or by nothing (None)."""

    at_ns: int
    traffic_class: str
    reason: WaitReason | None


class DecisionLog:
    """The last steps, and the times at which arrivals were held up."""

    def __init__(self) -> None:
        self.steps: deque[StepDecision] = deque(maxlen=STEPS_KEPT)
        self._gates: deque[BlockedClass] = deque(maxlen=GATES_KEPT)
        self._shut: dict[str, WaitReason] = {}

    def add(self, decision: StepDecision) -> None:
        """Add a step that was sent."""
        self.steps.append(decision)

    def set_blocked(self, now_ns: int, gates: dict[str, WaitReason]) -> None:
        """Set what holds up arrivals from now on, by class; "" stands for all classes. Only changes are kept."""
        if gates == self._shut:
            return
        for name in self._shut:
            if name not in gates:
                self._gates.append(BlockedClass(now_ns, name, None))
        for name, reason in gates.items():
            if self._shut.get(name) is not reason:
                self._gates.append(BlockedClass(now_ns, name, reason))
        self._shut = dict(gates)

    def reason(self, traffic_class: str) -> WaitReason | None:
        """What holds up arrivals of a class now; None for nothing."""
        return self._shut.get("", self._shut.get(traffic_class))

    def waits(self, traffic_class: str, begin_ns: int, end_ns: int) -> dict[WaitReason | None, int]:
        """For what a request of this class that waited from begin to end did so, and how long: nanoseconds by reason.

        None stands for no known reason: others were before it, or the record does not reach back so far.
        """
        spent: dict[WaitReason | None, int] = {}
        for from_ns, to_ns, reason in self._intervals(traffic_class, end_ns):
            within = min(to_ns, end_ns) - max(from_ns, begin_ns)
            if within > 0:
                spent[reason] = spent.get(reason, 0) + within
        unknown = end_ns - begin_ns - sum(spent.values())
        if unknown > 0:
            spent[None] = spent.get(None, 0) + unknown
        return spent

    def last(self, stream: Stream) -> StepDecision | None:
        """The last kept step that passed over this request."""
        return next((each for each in reversed(self.steps) if any(one.stream == stream for one in each.passed)), None)

    def _intervals(self, traffic_class: str, end_ns: int) -> Iterator[tuple[int, int, WaitReason | None]]:
        """From, to and why, for one class; what holds up all goes before what holds up the class."""
        shut: dict[str, WaitReason] = {}
        since_ns = 0
        for gate in self._gates:
            if gate.traffic_class not in ("", traffic_class):
                continue
            reason = shut.get("", shut.get(traffic_class))
            if gate.reason is None:
                shut.pop(gate.traffic_class, None)
            else:
                shut[gate.traffic_class] = gate.reason
            if shut.get("", shut.get(traffic_class)) is not reason:
                if since_ns:
                    yield since_ns, gate.at_ns, reason
                since_ns = gate.at_ns
        if since_ns:
            yield since_ns, end_ns, shut.get("", shut.get(traffic_class))
