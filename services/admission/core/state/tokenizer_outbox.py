"""Jobs for the tokenizer: the text of requests that are reserved and not accepted yet.

Counts how much text there is, so that what waits can be bounded. Knows nothing of threads or of whose turn it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from noria.services.admission.core.ledger.request import Request
from noria.services.admission.core.state.events import TokenizeJob


@dataclass(slots=True, eq=False)
class TokenizerOutbox:
    """Tokenizer jobs of reserved requests.

    jobs: not yet handed to the tokenizer; working: handed to it and not answered; abandoned: no longer wanted from it.

    characters: text of all requests that are reserved, whether it is tokenized or came as ids.
    """

    jobs: dict[int, TokenizeJob] = field(default_factory=dict)
    working: set[int] = field(default_factory=set)
    abandoned: list[int] = field(default_factory=list)
    characters: int = 0

    def reserve(self, request: Request) -> None:
        """Queue the text of a request that was just reserved for the tokenizer."""
        self.characters += request.characters

    def submit(self, job: TokenizeJob) -> None:
        """Have a reserved request's text tokenized."""
        self.jobs[job.number] = job

    def finished(self, number: int) -> None:
        """The tokenizer is done with a job."""
        self.working.discard(number)

    def release(self, request: Request) -> None:
        """A reserved request is accepted or refused: whatever of it is still to be done here is not wanted any more."""
        self.characters -= request.characters
        if self.jobs.pop(request.number, None) is None and request.number in self.working:
            self.working.discard(request.number)
            self.abandoned.append(request.number)

    def take(self) -> tuple[list[TokenizeJob], list[int]]:
        """Jobs to be handed over now, and the numbers of those that are no longer wanted."""
        jobs, abandoned = list(self.jobs.values()), self.abandoned
        self.working.update(self.jobs)
        self.jobs.clear()
        self.abandoned = []
        return jobs, abandoned

    def check(self, reserved: Mapping[int, Request]) -> None:
        """Assert that it has the text of the reserved requests, by number, once each.

        One that came as ids is accepted or refused in the same event, so that none is left here.
        """
        assert self.characters == sum(each.characters for each in reserved.values())
        assert self.jobs.keys() | self.working == {each.number for each in reserved.values()}
        assert not self.jobs.keys() & self.working
