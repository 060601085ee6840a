"""What streams took, noted as it happens for whoever counts it. Taken once a turn; costs nothing to remember longer.

Intervals are in nanoseconds. A stream's end notes what the whole stream was, so that there are as many of these as ends.
"""

from enum import IntEnum
from typing import NamedTuple

from noria.proto.base import End
from noria.services.admission.core.accounts import Account
from noria.services.admission.core.ledger import Choice, Request


class Timing(IntEnum):
    """What was measured: in the queue, the first step to the first token, receipt to it, between tokens, from it to the end.

    RECLAIM: from the end of a running stream to the return of its last block.
    """

    QUEUE = 1
    PREFILL = 2
    FIRST_TOKEN = 3
    INTERVAL = 4
    DECODE = 5
    RECLAIM = 6


class Timed(NamedTuple):
    """Something took so long, so many times over."""

    account: Account
    timing: Timing
    ns: int
    times: int = 1


class Finish(NamedTuple):
    """A stream ended: after how long since receipt, with how many tokens of prompt and output."""

    account: Account
    end: End
    ns: int
    prompt_tokens: int
    output_tokens: int


class Timings:
    """What is to be counted since the last `take`."""

    def __init__(self) -> None:
        self.timed: list[Timed] = []
        self.finished: list[Finish] = []
        self.generated: dict[Account, int] = {}

    def emitted(self, account: Account, choice: Choice, tokens: int, now_ns: int) -> None:
        """A stream has more tokens; to be called before the ledger has them."""
        if not tokens:
            return
        self.generated[account] = self.generated.get(account, 0) + tokens
        if choice.last_token_ns:
            self.timed.append(Timed(account, Timing.INTERVAL, (now_ns - choice.last_token_ns) // tokens, tokens))
        choice.last_token_ns = now_ns

    def began(self, account: Account, request: Request, choice: Choice, now_ns: int) -> None:
        """A stream has its first token."""
        queue_ns = choice.queue_us * 1000
        self.timed += (
            Timed(account, Timing.QUEUE, queue_ns),
            Timed(account, Timing.PREFILL, max(0, now_ns - request.accepted_ns - queue_ns)),
            Timed(account, Timing.FIRST_TOKEN, now_ns - request.received_ns),
        )

    def ended(self, account: Account, request: Request, choice: Choice, now_ns: int) -> None:
        """A stream ended."""
        assert choice.end is not None
        if choice.first_token_ns is not None:
            self.timed.append(Timed(account, Timing.DECODE, now_ns - choice.first_token_ns))
        self.finished.append(
            Finish(account, choice.end, now_ns - request.received_ns, request.prompt_tokens, len(choice.ids))
        )

    def reclaimed(self, account: Account, delay_us: int) -> None:
        """The last block of a stream that was running when it ended is back."""
        self.timed.append(Timed(account, Timing.RECLAIM, delay_us * 1000))

    def take(self) -> "Timings":
        """What was noted since the last call."""
        taken = Timings()
        taken.timed, self.timed = self.timed, taken.timed
        taken.finished, self.finished = self.finished, taken.finished
        taken.generated, self.generated = self.generated, taken.generated
        return taken
