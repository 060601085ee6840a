"""Composes a step in turns: sequences that continue, prompts under way, and waiting requests.

Arrivals come last, for they may not take what running requests lack. The hot loop over decodes is here.
"""

from enum import IntEnum
from typing import Final

from noria.proto.execution import Slice
from noria.services.scheduler.core.arrivals import Arrivals
from noria.services.scheduler.core.board import Board
from noria.services.scheduler.core.decisions import Reason
from noria.services.scheduler.core.draft import Draft
from noria.services.scheduler.core.lane import Entry


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
                    self._decodes(draft)
                    if turn is self._turns[0]:
                        draft.withhold(self._board.prompt_tokens(beside=bool(draft.slices)))
                case Turn.PREFILLS:
                    for request in tuple(self._board.prefilling):
                        draft.chunk(request, ahead=self._arrivals.ahead(request))
                case Turn.ARRIVALS:
                    self._arrivals.admit(draft)

    def _decodes(self, draft: Draft) -> None:
        """One token for each sequence that continues. The hot loop: everything in it is local."""
        slices, entries, number, lookahead = draft.slices, draft.entries, draft.number, self._lookahead
        tokens_left, cache_left = draft.tokens_left, draft.cache_left
        for request in self._board.decoding:
            if not tokens_left:
                draft.pass_over(request, Reason.TOKENS)
                break
            output = request.planned
            if request.has_stop and output - request.seen >= lookahead:
                draft.pass_over(request, Reason.DETOKENIZER)
                continue
            length = request.length + 1
            if length > cache_left and slices:
                draft.pass_over(request, Reason.READS)
                continue
            if length > request.room and not draft.make_room(request, length):
                draft.pass_over(request, Reason.BLOCKS)
                continue
            slices.append(Slice(request.slot, length - 1, 1, True, True))
            held = request.held
            assert held is not None
            entries.append(Entry(request, output, 1, length, held))
            request.length = length
            request.planned = output = output + 1
            request.in_flight += 1
            request.last_step = number
            if output == request.limit:
                draft.drained.append(request)
            tokens_left -= 1
            cache_left -= length
        draft.decodes += draft.tokens_left - tokens_left
        draft.tokens_left, draft.cache_left = tokens_left, cache_left
