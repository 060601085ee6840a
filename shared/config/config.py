"""The configuration as frozen structs: every option is declared once, in the module of its section, and nowhere else.

A declaration is a section and name, type, default, bounds, flags and help. Flags, variables, the file and
`noria config` all follow from it. Classes and tenants, of which there may be any number, are declared in `traffic`.
Knows nothing of where values come from: that is `sources`.
"""

import msgspec

from noria.shared.config.policies import PLAIN_POLICY, SHARING_POLICY, PolicyName
from noria.shared.config.sections.cache import CacheSettings
from noria.shared.config.sections.executor import ExecutorSettings
from noria.shared.config.sections.http import HttpSettings
from noria.shared.config.sections.limits import LimitSettings
from noria.shared.config.sections.log import LogSettings
from noria.shared.config.sections.model import ModelSettings
from noria.shared.config.sections.runtime import RuntimeSettings
from noria.shared.config.sections.scheduler import BATCH_TOKENS, SchedulerSettings
from noria.shared.config.sections.telemetry import TelemetrySettings
from noria.shared.config.tenants import BUILT_IN, ClassSettings, TenantSettings

__all__ = [
    "BATCH_TOKENS",
    "CacheSettings",
    "Config",
    "ExecutorSettings",
    "HttpSettings",
    "LimitSettings",
    "LogSettings",
    "ModelSettings",
    "RuntimeSettings",
    "SchedulerSettings",
    "TelemetrySettings",
]


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole configuration; each service takes from it what it needs in its own `config.py`."""

    model: ModelSettings = ModelSettings()
    http: HttpSettings = HttpSettings()
    scheduler: SchedulerSettings = SchedulerSettings()
    cache: CacheSettings = CacheSettings()
    executor: ExecutorSettings = ExecutorSettings()
    limits: LimitSettings = LimitSettings()
    runtime: RuntimeSettings = RuntimeSettings()
    log: LogSettings = LogSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    classes: dict[str, ClassSettings] = msgspec.field(default_factory=BUILT_IN.copy)
    tenants: dict[str, TenantSettings] = {}

    @property
    def has_policy(self) -> bool:
        """Whether the file says anything of classes or tenants: without, there is one tenant and nothing is limited."""
        return bool(self.tenants) or self.classes != BUILT_IN

    @property
    def least_gateway_grace_s(self) -> float:
        """How long it may take until the reader of a gateway that hangs reaches another: found out, started, connected."""
        runtime = self.runtime
        return runtime.hang_timeout_s + runtime.longest_restart_pause_s + runtime.peer_timeout_s

    @property
    def gateway_grace_s(self) -> float:
        """How long requests live on after their gateway was last heard."""
        return self.least_gateway_grace_s if self.http.gateway_grace_s is None else self.http.gateway_grace_s

    @property
    def policy(self) -> PolicyName:
        """The scheduling policy in effect: as configured, else fair where there are classes or tenants, else fifo."""
        chosen = self.scheduler.policy
        if chosen == "auto":
            return SHARING_POLICY if self.has_policy else PLAIN_POLICY
        return chosen
