"""Every span and metric name of the product, once, with unit and description."""

from typing import Final

SPAN_HTTP: Final = "http"  # the gateway names it after method and route
SPAN_ADMIT: Final = "admit"
SPAN_TOKENIZE: Final = "tokenize"
SPAN_QUEUE: Final = "queue"
SPAN_PREFILL: Final = "prefill"
SPAN_DECODE: Final = "decode"
SPAN_STEP: Final = "step"
SPAN_STREAM: Final = "stream"

ATTRIBUTE_REQUEST: Final = "noria.request"
ATTRIBUTE_CHOICE: Final = "noria.choice"
ATTRIBUTE_END: Final = "noria.end"
ATTRIBUTE_DECISION: Final = "noria.decision"
ATTRIBUTE_STEP: Final = "noria.step"
ATTRIBUTE_QUERY_TOKENS: Final = "noria.query_tokens"
ATTRIBUTE_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
ATTRIBUTE_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
ATTRIBUTE_REQUEST_MODEL: Final = "gen_ai.request.model"
ATTRIBUTE_RESPONSE_MODEL: Final = "gen_ai.response.model"
ATTRIBUTE_OPERATION: Final = "gen_ai.operation.name"
ATTRIBUTE_PROVIDER: Final = "gen_ai.provider.name"
ATTRIBUTE_FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
