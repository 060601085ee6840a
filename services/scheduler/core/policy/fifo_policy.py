"""The policies `fifo` and `prefill_first`: requests by age, all alike, and nothing is charged."""

from enum import IntEnum
from typing import ClassVar, Final

from noria.services.scheduler.core.interface.traffic_rules import AccountStanding, FairRules
from noria.services.scheduler.core.policy.ranked_heap import RankedHeap
from noria.services.scheduler.core.predict.step_times import StepTimePredictor
from noria.services.scheduler.core.state.request import Billing, Request, RequestStatus
from noria.services.scheduler.core.state.scheduler_state import SchedulerState
from noria.services.scheduler.core.step.decode_slices import plan_decodes
from noria.services.scheduler.core.step.request_admission import RequestAdmission
from noria.services.scheduler.core.step.step_builder import StepBuilder


class StepPart(IntEnum):
    """A part of a step: sequences that continue, prompts under way, or waiting requests."""

    DECODES = 1
    PREFILLS = 2
    ARRIVALS = 3


DECODES_FIRST: Final = (StepPart.DECODES, StepPart.PREFILLS, StepPart.ARRIVALS)
PREFILLS_FIRST: Final = (StepPart.PREFILLS, StepPart.DECODES, StepPart.ARRIVALS)


class FifoComposer:
    """Composes steps of parts in an order that is the same for all. margin: share of the cache that arrivals leave free.

    Arrivals come last, for they may not take what running requests lack.
    """

    def __init__(self, state: SchedulerState, turns: tuple[StepPart, ...], margin: float) -> None:
        self._state = state
        self._turns = turns
        self._admission = RequestAdmission(state, margin)
        self._lookahead = state.settings.stop_lookahead

    @property
    def patient(self) -> bool:
        """Never: the next step is composed as soon as it may be."""
        return False

    def prepare(self, now_ns: int) -> None:
        """Does nothing: nobody gives way before a step is composed."""

    def tokens(self, most: int, now_ns: int) -> int:
        """All query tokens that the step may have."""
        del now_ns
        return most

    def compose(self, builder: StepBuilder) -> None:
        """Spend the step's budgets part by part; suspects are left out."""
        for turn in self._turns:
            match turn:
                case StepPart.DECODES:
                    plan_decodes(builder, self._state.continuing, self._lookahead)
                    if turn is self._turns[0]:
                        builder.withhold(self._state.prompt_tokens(len(builder.slices)))
                case StepPart.PREFILLS:
                    for request in tuple(self._state.prefilling):
                        if not request.suspicion.suspected:
                            builder.chunk(request, ahead=self._state.ahead(request))
                case StepPart.ARRIVALS:
                    self._admission.admit(builder)

    def compose_only(self, builder: StepBuilder, requests: list[Request]) -> None:
        """Spend the step's budgets on these requests alone, who are suspected."""
        for request in requests:
            if request.state is RequestStatus.WAITING:
                self._admission.admit_only(builder, request)
            elif request.state is RequestStatus.PREFILLING:
                builder.chunk(request, ahead=self._state.ahead(request))
            elif request.state is RequestStatus.DECODING:
                plan_decodes(builder, (request,), self._lookahead)


class FifoPolicy:
    """Decodes, then running prefills, then arrivals by age; the newest is preempted first."""

    name: ClassVar[str] = "fifo"
    margin: ClassVar[float] = 0.15
    by_class: ClassVar[bool] = False
    parts: ClassVar[tuple[StepPart, ...]] = DECODES_FIRST

    def __init__(self, rules: FairRules) -> None:
        self.rules = rules
        self.order = AgeOrder()

    def composer(self, state: SchedulerState, times: StepTimePredictor) -> FifoComposer:
        """Steps of parts in an order that is the same for all."""
        del times
        margin = state.settings.safety_margin
        return FifoComposer(state, self.parts, self.margin if margin is None else margin)

    def change(self, rules: FairRules) -> None:
        """Remember other classes and tenants, which change nothing here."""
        self.rules = rules

    def precedence(self, request: Request) -> tuple[int, ...]:
        """Orders running requests that lack blocks: oldest first."""
        return request.asked.seniority

    def spares(self, victim: Request, claimant: Request, *, top: bool, desperate: bool) -> bool:
        """Spares who has not made a token since it last gave way, except for the oldest of all."""
        del claimant, desperate
        return victim.immune and not top

    def kept(self, pages: int, page_tokens: int) -> int:
        """None: no page is kept for anybody."""
        del pages, page_tokens
        return 0

    def cramped(self, pages: int, page_tokens: int) -> list[tuple[str, int | None]]:
        """None: no class reserves anything."""
        del pages, page_tokens
        return []

    def adopt(self, request: Request) -> None:
        """Close a request's account; what was charged before stays known, should it be opened again."""
        before = request.billing
        request.billing = Billing(
            paid_prompt=before.paid_prompt,
            paid_output=before.paid_output,
            prompt_before=before.prompt_before,
            output_before=before.output_before,
            rotated_ns=before.rotated_ns,
        )

    def carried(self, request: Request) -> None:
        """Charges nothing."""

    def taken_over(self, request: Request) -> None:
        """Charges nothing."""

    def ended(self, request: Request) -> None:
        """Pays nothing back."""

    def discarded(self, request: Request, output: int, start: int, end: int) -> None:
        """Pays nothing back."""

    def standings(self) -> list[AccountStanding]:
        """None: nobody's service is counted."""
        return []

    def check(self, request: Request) -> None:
        """Raises AssertionError when a request has an account."""
        assert type(request.billing) is Billing and not request.billing.rank


class PrefillFirstPolicy(FifoPolicy):
    """First in, first out, with running prompts before decodes, and without `fifo`'s margin of blocks.

    The order is that of transformers' scheduler of this name: running prefills, decodes, arrivals.
    """

    name: ClassVar[str] = "prefill_first"
    margin: ClassVar[float] = 0.0
    parts: ClassVar[tuple[StepPart, ...]] = PREFILLS_FIRST


class AgeOrder:
    """Waiting requests by age; those who come back from the host go before those who must be computed."""

    def __init__(self) -> None:
        self._heap = RankedHeap[Request]()

    def join(self, request: Request) -> None:
        """A request begins to wait."""
        self._heap.add(request, (request.cache.host is None, *request.asked.seniority))

    def rejoin(self, request: Request) -> None:
        """A request that waited all the time has a place in the order again."""
        self.join(request)

    def leave(self, request: Request) -> None:
        """A request gives up its place in the order."""
        self._heap.remove(request)

    def first(self) -> Request | None:
        """The request whose turn is next; None without any."""
        return self._heap.first()

    def check(self, requests: set[Request]) -> None:
        """Raises AssertionError when it does not hold exactly these requests."""
        self._heap.check(requests)
