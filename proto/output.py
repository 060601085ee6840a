"""Messages that carry output from the scheduler to the detokenizer, and as text to admission."""

import msgspec

from noria.proto.base import Ended, Logprobs, Stream, TokenLogprob


class Opening(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What the detokenizer needs before a stream's first token.

    prompt_tail: the last prompt ids, so that the text continues it. output_ids and characters: what the ledger already
    has, when the stream is opened again; text before `characters` is not sent again. end_ids: ids whose text is not
    shown unless `include_stop`; min_tokens: stop strings completed by an earlier token do not end the stream. logprobs:
    send log-probabilities of the ids, too.
    """

    stream: Stream
    attempt: int
    prompt_tail: tuple[int, ...]
    stop: tuple[str, ...] = ()
    end_ids: tuple[int, ...] = ()
    min_tokens: int = 0
    include_stop: bool = False
    skip_special_tokens: bool = True
    output_ids: tuple[int, ...] = ()
    characters: int = 0
    traceparent: str = ""
    logprobs: bool = False


class Open(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Admission to detokenizer: these streams are about to produce tokens.

    complete: every unfinished stream has been named since the detokenizer joined; whatever else it knows has ended.
    """

    openings: tuple[Opening, ...]
    complete: bool = False


class TokenRun(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Output ids of one stream from output position `start`. `end` (0 = none) proposes that the last id ends it.

    A stream that ends without a token (deadline, error) has empty ids. `detail` says what went wrong. likelihoods: of
    each id, for streams whose sampling asks for them; else empty.
    """

    stream: Stream
    attempt: int
    start: int
    ids: tuple[int, ...]
    end: int = 0
    detail: str = ""
    cached_tokens: int = 0
    queue_us: int = 0
    likelihoods: tuple[TokenLogprob, ...] = ()


class Tokens(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Scheduler to detokenizer: the new token ids of all streams in one step, or in several short ones."""

    runs: tuple[TokenRun, ...]


class TextRun(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Ids from output position `start` and the text they added from character position `characters`.

    end: 0 while the stream goes on, else why it ended; then `start + len(ids)` is its final token count, counted to
    the token that completed the stop string. matched: the stop string or stop token id. logprobs: of each id, for
    streams whose sampling asks for them; else empty.
    """

    stream: Stream
    attempt: int
    start: int
    ids: tuple[int, ...]
    characters: int
    text: str
    end: int = 0
    matched: str = ""
    detail: str = ""
    cached_tokens: int = 0
    queue_us: int = 0
    logprobs: tuple[Logprobs, ...] = ()


class Texts(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Detokenizer to admission: new text of all streams in one turn, token ids included so that the ledger is complete."""

    runs: tuple[TextRun, ...]


class Unknown(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Detokenizer to admission: tokens came for streams that are not open here; open them again."""

    streams: tuple[Stream, ...]


class Gap(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A stream whose output ids are missing from position `start`."""

    stream: Stream
    start: int


class Resend(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Receiver to sender: send these streams' ids (and end, if there is one) again from `start`.

    Detokenizer to scheduler, or admission to detokenizer.
    """

    gaps: tuple[Gap, ...]


class Progress(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Detokenizer to scheduler: for streams with stop strings, how many output ids have been looked at."""

    seen: tuple[Gap, ...]


SCHEDULER_TO_DETOKENIZER = (Tokens,)
DETOKENIZER_TO_SCHEDULER = (Resend, Progress)
DETOKENIZER_TO_ADMISSION = (Texts, Unknown)
ADMISSION_TO_DETOKENIZER = (Open, Ended, Resend)
