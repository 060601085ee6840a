"""`python -m noria.services.scheduler --config FILE`."""

from noria.proto.base import Service
from noria.services.scheduler.config import scheduler_settings
from noria.services.scheduler.service import SchedulerService
from noria.shared.config import Config
from noria.shared.process import main, run


def start(config: Config) -> int:
    """Serve until SIGTERM."""
    settings = scheduler_settings(config)
    return run(
        Service.SCHEDULER,
        config,
        (Service.ADMISSION, Service.EXECUTOR, Service.DETOKENIZER),
        lambda actor, telemetry: SchedulerService(actor, telemetry, settings),
    )


if __name__ == "__main__":
    main(Service.SCHEDULER, start)
