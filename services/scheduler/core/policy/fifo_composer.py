"""Composes a step in turns: sequences that continue, prompts under way, and waiting requests.

Arrivals come last, for they may not take what running requests lack.
"""

from enum import IntEnum
from typing import Final

from noria.services.scheduler.core.state.request import Request, State
from noria.services.scheduler.core.state.scheduler_state import Board
from noria.services.scheduler.core.step.decode_slices import continue_each
from noria.services.scheduler.core.step.request_admission import Arrivals
from noria.services.scheduler.core.step.step_builder import Draft


class Turn(IntEnum):
    """A part of a step: sequences that continue, prompts under way, and waiting requests."""

    DECODES = 1
    PREFILLS = 2
    ARRIVALS = 3


DECODES_FIRST: Final = (Turn.DECODES, Turn.PREFILLS, Turn.ARRIVALS)
PREFILLS_FIRST: Final = (Turn.PREFILLS, Turn.DECODES, Turn.ARRIVALS)


class Turns:
    """Composes steps in an order of turns that is the same for all. margin: what arrivals leave of the cache."""

    def __init__(self, board: Board, turns: tuple[Turn, ...], margin: float) -> None:
        self._board = board
        self._turns = turns
        self._arrivals = Arrivals(board, margin)
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

    def compose(self, draft: Draft) -> None:
        """Spend the draft's budgets."""
        for turn in self._turns:
            match turn:
                case Turn.DECODES:
                    continue_each(draft, self._board.continuing, self._lookahead)
                    if turn is self._turns[0]:
                        draft.withhold(self._board.prompt_tokens(len(draft.slices)))
                case Turn.PREFILLS:
                    for request in tuple(self._board.prefilling):
                        if not request.suspected:
                            draft.chunk(request, ahead=self._arrivals.ahead(request))
                case Turn.ARRIVALS:
                    self._arrivals.admit(draft)

    def compose_only(self, draft: Draft, requests: list[Request]) -> None:
        """Spend them on these requests alone."""
        for request in requests:
            if request.state is State.WAITING:
                self._arrivals.admit_only(draft, request)
            elif request.state is State.PREFILLING:
                draft.chunk(request, ahead=self._arrivals.ahead(request))
            elif request.state is State.DECODING:
                continue_each(draft, (request,), self._lookahead)
