"""What a generation yields: deltas while it runs, a completion when it is whole."""

import msgspec

from noria.proto.base import Alternative, Logprobs
from noria.proto.frontdoor import Accepted, Timings

__all__ = ["Accepted", "Alternative", "Choice", "Completion", "Delta", "Finish", "Logprobs", "Timings", "Usage"]


class Finish(msgspec.Struct, frozen=True):
    """How a choice ended.

    reason: stop, length, cancelled, deadline, shed or error. matched: the stop string, or the decimal stop token id,
    that ended it. detail: more about an error. output_tokens counts every token up to the end.
    """

    reason: str
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    matched: str = ""
    detail: str = ""
    timings: Timings = Timings()


class Delta(msgspec.Struct, frozen=True):
    """New output of one choice since its previous delta.

    text begins at character `characters` of the choice, token_ids at output token `start`. Both may be empty. Several
    steps are one delta for a reader that takes its time. `finish` is set on the last delta of each choice alone.
    A raised `attempt` (rare) takes back what lies beyond `start` and `characters`. logprobs: of each token, if asked for.
    """

    index: int
    text: str = ""
    token_ids: tuple[int, ...] = ()
    start: int = 0
    characters: int = 0
    attempt: int = 0
    finish: Finish | None = None
    logprobs: tuple[Logprobs, ...] = ()


class Choice(msgspec.Struct, frozen=True):
    """One whole choice. logprobs: of each token, if asked for."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish: Finish
    logprobs: tuple[Logprobs, ...] = ()

    @property
    def finish_reason(self) -> str:
        """Why it ended: stop, length, cancelled, deadline, shed or error."""
        return self.finish.reason

    @property
    def matched(self) -> str:
        """The stop string, or the decimal stop token id, that ended it; else empty."""
        return self.finish.matched

    @property
    def timings(self) -> Timings:
        """Milliseconds in the queue, to the first token and to the end."""
        return self.finish.timings


class Usage(msgspec.Struct, frozen=True):
    """Tokens of a request: the prompt once, the output of all choices.

    cached_tokens: prompt tokens that every choice found in the cache, so that none is counted which a choice of the
    same request computed for the others.
    """

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Prompt and output together."""
        return self.prompt_tokens + self.output_tokens


class Completion(msgspec.Struct, frozen=True):
    """A whole answer. `accepted` is None only for a request that was cancelled before it was accepted."""

    id: str
    accepted: Accepted | None
    choices: tuple[Choice, ...]

    @property
    def text(self) -> str:
        """The text of the first choice."""
        return self.choices[0].text

    @property
    def finish_reason(self) -> str:
        """Why the first choice ended."""
        return self.choices[0].finish_reason

    @property
    def usage(self) -> Usage:
        """Tokens used."""
        finishes = [choice.finish for choice in self.choices]
        prompt_tokens = self.accepted.prompt_tokens if self.accepted else 0
        return Usage(
            prompt_tokens=max([prompt_tokens, *(each.prompt_tokens for each in finishes)]),
            output_tokens=sum(each.output_tokens for each in finishes),
            cached_tokens=min(each.cached_tokens for each in finishes),
        )
