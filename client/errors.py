"""What can go wrong between a client and a stack, one type per thing that a program may want to tell apart."""

from noria.proto.frontdoor import Code


class ClientError(Exception):
    """The base class of all errors of this library."""


class Refused(ClientError):  # noqa: N818  # a state of affairs, as its callers say it
    """The request was not accepted.

    code: which kind of refusal; reason: a sentence for people; parameter: the field at fault, or empty;
    retry_after_ms: when it may succeed, or None when repeating it is pointless.
    """

    def __init__(self, code: Code, reason: str, parameter: str = "", retry_after_ms: int | None = None) -> None:
        super().__init__(f"{code.value}: {reason}")
        self.code = code
        self.reason = reason
        self.parameter = parameter
        self.retry_after_ms = retry_after_ms


class Unreachable(ClientError):  # noqa: N818  # a state of affairs, as its callers say it
    """Nothing answered in time, or an answer stopped coming; the text says what was tried and for how long."""


class Interrupted(ClientError):  # noqa: N818  # a state of affairs, as its callers say it
    """A running answer can not be continued: the server no longer knows it."""


class Superseded(Interrupted):
    """The same request id was asked for again by this client; the newer generation owns the answer."""


class Malformed(ClientError):  # noqa: N818  # named as the protocol names it
    """The server could not read what this client sent: most likely the two are of different versions."""


class Closed(ClientError):  # noqa: N818  # a state of affairs, as its callers say it
    """The client was closed while the answer was still coming, or used after that."""
