"""What admission needs of the configuration and the model's folder."""

import time
from dataclasses import dataclass
from pathlib import Path

from noria.services.admission.core.tenants.admission_limits import AdmissionLimits
from noria.services.admission.core.tenants.tenant_policy import ClassRule, TenantPolicy, TenantRule
from noria.services.admission.metrics import bounds
from noria.shared.config.config import Config
from noria.shared.config.tenants import KEY_PREFIX, allowed_classes, default_class_of
from noria.shared.model import model_folder


@dataclass(frozen=True, slots=True)
class AdmissionConfig:
    """Read once at the start.

    limits: what the core decides by. policy: classes and tenants, which may change later.
    message_bytes_max: largest message on the public mailbox.
    """

    limits: AdmissionLimits
    policy: TenantPolicy
    message_bytes_max: int


def admission_config(config: Config, folder: Path, *, has_chat_template: bool) -> AdmissionConfig:
    """Gather the limits and the facts of the model in `folder`. Raises UserError when it is unusable."""
    facts = model_folder.read_model_facts(folder, config.model)
    configured, runtime = config.limits, config.runtime
    limits = AdmissionLimits(
        models=model_folder.served_names(config.model),
        context_tokens=facts.max_model_tokens,
        vocabulary=facts.vocabulary,
        eos_ids=facts.eos_ids,
        has_chat_template=has_chat_template,
        started_unix_s=int(time.time()),
        requests_max=configured.requests_max,
        n_max=configured.n_max,
        stop_strings_max=configured.stop_strings_max,
        messages_max=configured.messages_max,
        tokenizing_characters_max=configured.tokenizing_characters_max,
        retention_ns=int(runtime.retention_s * 1e9),
        client_timeout_ns=int(runtime.peer_timeout_s * 1e9),
        prompt_price=config.scheduler.prompt_price,
        cached_price=config.scheduler.cached_price,
        output_price=config.scheduler.output_price,
        bounds=bounds(),
    )
    return AdmissionConfig(limits, admission_policy(config), configured.message_bytes_max)


def admission_policy(config: Config) -> TenantPolicy:
    """Classes and tenants as the core knows them. Where the file names none, the built-in classes limit nothing."""
    limited = config.has_policy
    classes = {
        name: ClassRule(
            name=name,
            rank=each.rank,
            isolated=each.isolated,
            prompt_tokens_max=each.prompt_tokens_max if limited else None,
            output_tokens_max=each.output_tokens_max if limited else None,
            ttl_first_ms=each.ttl_first_ms,
            ttl_ms=each.ttl_ms,
            queue_requests_max=each.queue_requests_max if limited else None,
            queue_tokens_max=each.queue_tokens_max if limited else None,
        )
        for name, each in config.classes.items()
    }
    tenants = tuple(
        TenantRule(
            name=name,
            classes=allowed_classes(each, config.classes),
            default_class=default_class_of(each, config.classes),
            keys=tuple(bytes.fromhex(key.removeprefix(KEY_PREFIX)) for key in each.keys),
            concurrency_max=each.concurrency_max,
            tokens_per_minute=each.tokens_per_minute,
            burst_tokens=each.burst_tokens,
            prompt_tokens_max=each.prompt_tokens_max,
            output_tokens_max=each.output_tokens_max,
            n_max=each.n_max,
        )
        for name, each in config.tenants.items()
    )
    return TenantPolicy(classes, tenants)
