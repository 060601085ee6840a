"""`python -m noria.services.scheduler --config FILE`."""

from noria.proto.base import Service
from noria.services.scheduler.config import event_log_of, scheduler_settings
from noria.services.scheduler.service import SchedulerService
from noria.shared.actor.actor import Actor
from noria.shared.config.config import Config
from noria.shared.process.service_process import main, reload, run
from noria.shared.telemetry.telemetry import Telemetry


def start(config: Config) -> int:
    """Serve until SIGTERM."""
    settings = scheduler_settings(config)
    interval_ns = int(config.scheduler.tokens_interval_ms * 1e6)

    def build(actor: Actor, telemetry: Telemetry) -> SchedulerService:
        shell = SchedulerService(actor, telemetry, settings, event_log_of(config), interval_ns)

        def reread() -> None:
            reload(Service.SCHEDULER, config, lambda changed: shell.change_policy(scheduler_settings(changed)))

        actor.on_reload(reread)
        return shell

    return run(Service.SCHEDULER, config, (Service.ADMISSION, Service.EXECUTOR, Service.DETOKENIZER), build)


if __name__ == "__main__":
    main(Service.SCHEDULER, start)
