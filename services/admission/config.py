"""What admission needs of the configuration and the model's folder."""

import time
from dataclasses import dataclass
from pathlib import Path

from noria.services.admission.core.rules import Rules
from noria.shared import models
from noria.shared.config import Config


@dataclass(frozen=True, slots=True)
class AdmissionConfig:
    """Read once at the start.

    rules: what the core decides by. message_bytes_max: largest message on the public mailbox.
    """

    rules: Rules
    message_bytes_max: int


def admission_config(config: Config, folder: Path, *, has_chat_template: bool) -> AdmissionConfig:
    """Gather the limits and the facts of the model in `folder`. Raises UserError when it is unusable."""
    facts = models.facts(folder, config.model)
    limits, runtime = config.limits, config.runtime
    rules = Rules(
        models=models.served_names(config.model),
        context_tokens=facts.max_model_tokens,
        vocabulary=facts.vocabulary,
        eos_ids=facts.eos_ids,
        has_chat_template=has_chat_template,
        started_unix_s=int(time.time()),
        requests_max=limits.requests_max,
        n_max=limits.n_max,
        stop_strings_max=limits.stop_strings_max,
        stop_string_characters_max=limits.stop_string_characters_max,
        stop_token_ids_max=limits.stop_token_ids_max,
        request_id_characters_max=limits.request_id_characters_max,
        messages_max=limits.messages_max,
        tokenizing_characters_max=limits.tokenizing_characters_max,
        retention_ns=int(runtime.retention_s * 1e9),
        client_timeout_ns=int(runtime.peer_timeout_s * 1e9),
    )
    return AdmissionConfig(rules, limits.message_bytes_max)
