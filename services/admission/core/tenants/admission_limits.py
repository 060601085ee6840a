"""The fixed limits of admission: facts of the model, limits on input, sizes of queues and messages, and timeouts."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from noria.services.admission.core.tenants.class_totals import StreamMeasure


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """The limits and model facts that admission checks requests against; fixed while the process runs.

    models: served names, the first canonical. context_tokens: prompt and output together, as declared.
    eos_ids end a stream unless it ignores them. started_unix_s is for people.
    retention_ns: how long an ended request may still be attached to when nobody acknowledged it.
    client_timeout_ns: silence after which a client is gone; its requests are cancelled, unless they may go on longer.
    tokenizing_characters_max: text that may wait for the tokenizer, of all clients together.
    answers_max: refusals kept for one client that does not read. update_tokens_max: output tokens in one `Updates`.
    batch_tokens_max: token ids in one `Submit` or `Open`. prompt_tail_tokens: prompt ids shown to the detokenizer.
    prompt_price, cached_price, output_price: what the scheduler charges for a token.
    bounds: where the buckets of what is measured end, in nanoseconds or tokens; one bucket for what is not named.
    """

    models: tuple[str, ...]
    context_tokens: int
    vocabulary: int
    eos_ids: tuple[int, ...]
    has_chat_template: bool
    started_unix_s: int
    requests_max: int
    n_max: int
    stop_strings_max: int
    messages_max: int
    tokenizing_characters_max: int
    retention_ns: int
    client_timeout_ns: int
    clients_max: int = 4096
    answers_max: int = 256
    update_tokens_max: int = 16_384
    batch_tokens_max: int = 262_144
    prompt_tail_tokens: int = 16
    prompt_price: float = 1.0
    cached_price: float = 0.1
    output_price: float = 2.0
    bounds: Mapping[StreamMeasure, tuple[int, ...]] = field(default_factory=dict)
