"""Composes a step in turns: sequences that continue, prompts under way, and waiting requests.

Arrivals come last, for they may not take what running requests lack.
"""

from enum import IntEnum
from typing import Final

from noria.services.scheduler.core.state.request import Request, RequestState
from noria.services.scheduler.core.state.scheduler_state import SchedulerState
from noria.services.scheduler.core.step.decode_slices import plan_decodes
from noria.services.scheduler.core.step.request_admission import RequestAdmission
from noria.services.scheduler.core.step.step_builder import StepBuilder


class StepPart(IntEnum):
    """A part of a step: sequences that continue, prompts under way, and waiting requests."""

    DECODES = 1
    PREFILLS = 2
    ARRIVALS = 3


DECODES_FIRST: Final = (StepPart.DECODES, StepPart.PREFILLS, StepPart.ARRIVALS)
PREFILLS_FIRST: Final = (StepPart.PREFILLS, StepPart.DECODES, StepPart.ARRIVALS)


class FifoComposer:
    """Composes steps in an order of turns that is the same for all. margin: what arrivals leave of the cache."""

    def __init__(self, board: SchedulerState, turns: tuple[StepPart, ...], margin: float) -> None:
        self._board = board
        self._turns = turns
        self._arrivals = RequestAdmission(board, margin)
        self._lookahead = board.settings.stop_lookahead

    @property
    def patient(self) -> bool:
        """The next step is composed as soon as it may be."""
        return False

    def prepare(self, now_ns: int) -> None:
        """Nobody gives way before a step is composed."""

    def tokens(self, most: int) -> int:
        """Every step may be as large as it may be."""
        return most

    def compose(self, draft: StepBuilder) -> None:
        """Spend the draft's budgets."""
        for turn in self._turns:
            match turn:
                case StepPart.DECODES:
                    plan_decodes(draft, self._board.continuing, self._lookahead)
                    if turn is self._turns[0]:
                        draft.withhold(self._board.prompt_tokens(len(draft.slices)))
                case StepPart.PREFILLS:
                    for request in tuple(self._board.prefilling):
                        if not request.suspected:
                            draft.chunk(request, ahead=self._arrivals.ahead(request))
                case StepPart.ARRIVALS:
                    self._arrivals.admit(draft)

    def compose_only(self, draft: StepBuilder, requests: list[Request]) -> None:
        """Spend them on these requests alone."""
        for request in requests:
            if request.state is RequestState.WAITING:
                self._arrivals.admit_only(draft, request)
            elif request.state is RequestState.PREFILLING:
                draft.chunk(request, ahead=self._arrivals.ahead(request))
            elif request.state is RequestState.DECODING:
                plan_decodes(draft, (request,), self._lookahead)
