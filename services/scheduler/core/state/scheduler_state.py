"""Everything that the scheduler owns, with what can be asked of it. Changes nothing by itself.

`step.request_lifecycle` moves requests from one state to another, the handlers and the planner call it.
"""

from collections.abc import Collection

from noria.proto.base import Stream
from noria.proto.execution import Geometry
from noria.services.scheduler.core.cache.block_allocators import UNLIMITED
from noria.services.scheduler.core.cache.cache_allocator import CacheAllocator
from noria.services.scheduler.core.interface.events import SchedulerReply
from noria.services.scheduler.core.interface.settings import CoreSettings
from noria.services.scheduler.core.predict.slot_forecast import EndRates
from noria.services.scheduler.core.state.cache_memory import CacheMemory
from noria.services.scheduler.core.state.counters import SchedulerCounters
from noria.services.scheduler.core.state.deadlines import Deadlines
from noria.services.scheduler.core.state.free_slots import FreeSlots
from noria.services.scheduler.core.state.in_flight_steps import InFlightSteps
from noria.services.scheduler.core.state.reclaims import ReclaimReports
from noria.services.scheduler.core.state.request import Request
from noria.services.scheduler.core.state.request_policy import RequestPolicy
from noria.services.scheduler.core.state.step_decisions import DecisionLog, WaitReason
from noria.services.scheduler.core.state.suspects import Suspects
from noria.services.scheduler.core.state.waiting_queue import WaitingQueue


class SchedulerState:
    """Requests by state, with the executor's cache, slots and steps in flight."""

    def __init__(self, settings: CoreSettings, policy: RequestPolicy) -> None:
        self.settings = settings
        # Whose turn it is, who gives way, and what is charged.
        self.policy = policy
        # Every stream that admission has named and not ended, whatever its state.
        self.requests: dict[Stream, Request] = {}
        self.waiting = WaitingQueue(policy.order)
        # Requests of the states of these names, in the order in which they came into them.
        self.prefilling: dict[Request, None] = {}
        self.decoding: dict[Request, None] = {}
        self.draining: dict[Request, None] = {}
        # How many are in state FINISHED.
        self.finished = 0
        self.in_flight = InFlightSteps()
        # Of the present executor; None without one.
        self.geometry: Geometry | None = None
        self.memory: CacheMemory | None = None
        self.slots = FreeSlots(0)
        # Requests whose cache was taken over: the plan that opens the epoch fills their slots.
        self.adopted: dict[Request, None] = {}
        self.counters = SchedulerCounters()
        self.deadlines = Deadlines()
        self.suspects = Suspects()
        # What the last steps were made of, and what holds up requests.
        self.decisions = DecisionLog()
        # How sequences left their slots lately.
        self.end_rates = EndRates()
        # What is to be replied with the event at hand.
        self.replies: list[SchedulerReply] = []
        self.reclaims = ReclaimReports(self.in_flight, self.counters, self.reply)

    @property
    def running(self) -> int:
        """How many requests hold a slot or await results of one."""
        return len(self.prefilling) + len(self.decoding) + len(self.draining)

    @property
    def continuing(self) -> Collection[Request]:
        """The requests that continue token by token beside all others; suspects do in steps of their own."""
        if not len(self.suspects):
            return self.decoding
        return [request for request in self.decoding if not request.suspicion.suspected]

    @property
    def cache(self) -> CacheAllocator | None:
        """The present executor's cache."""
        return self.memory.cache if self.memory is not None else None

    def prompt_tokens(self, beside: int) -> int:
        """The prompt tokens that a step may have beside so many decodes: as configured, else as the executor advises."""
        configured, geometry = self.settings.prefill_tokens, self.geometry
        if configured is not None:
            return configured
        assert geometry is not None
        if not beside:
            return geometry.prefill_tokens or UNLIMITED
        many = geometry.prefill_tokens_beside
        return max(many, min(geometry.prefill_tokens_few, many * geometry.prefill_decodes // beside)) or UNLIMITED

    def ahead(self, request: Request) -> bool:
        """Whether a request's next token must wait until the detokenizer has looked at the last ones."""
        far = request.work.outputs - request.progress.seen >= self.settings.stop_lookahead
        return request.asked.has_stop_strings and far

    def unready(self, request: Request) -> WaitReason | None:
        """The reason why a waiting request can't be admitted, whatever is free; None when it is ready."""
        if request.in_flight:
            return WaitReason.RESULT
        return WaitReason.DETOKENIZER if self.ahead(request) else None

    def reply(self, reply: SchedulerReply) -> None:
        """Add a reply to the event at hand."""
        self.replies.append(reply)

    def take_replies(self) -> list[SchedulerReply]:
        """The replies since last asked; each once."""
        replies, self.replies = self.replies, []
        return replies
