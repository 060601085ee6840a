"""Why a request is not accepted, and the messages that say so to its client."""

from dataclasses import dataclass

from noria.proto.frontdoor import Code, Forecast, Rejected


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is refused: what is wrong and what to do, where, and when it is worth trying again."""

    code: Code
    reason: str
    parameter: str = ""
    retry_after_ms: int | None = None

    def rejected(self, request_id: str) -> Rejected:
        """The answer to a request."""
        return Rejected(request_id, self.code, self.reason, self.parameter, self.retry_after_ms)

    def forecast(self, request_id: str, traffic_class: str) -> Forecast:
        """The answer to a preview: the request would be refused."""
        return Forecast(
            request_id,
            admitted=False,
            traffic_class=traffic_class,
            code=self.code,
            reason=self.reason,
            parameter=self.parameter,
            retry_after_ms=self.retry_after_ms,
        )
