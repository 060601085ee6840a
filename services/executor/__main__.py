"""`python -m noria.services.executor --config FILE`."""

import os
import sys

from noria.proto.base import Service
from noria.services.executor.config import executor_config
from noria.services.executor.runner.machine import cores
from noria.shared.actor.actor import Actor
from noria.shared.config.config import Config
from noria.shared.process.service_process import main, run
from noria.shared.process.watchdog import leave_hung
from noria.shared.telemetry.telemetry import Telemetry


def start(config: Config) -> int:
    """Run the executor; 1 when its model cannot be loaded."""
    settings = executor_config(config)
    # Read by OpenMP and MKL when torch is first imported. Default wait policy and no pinning were the fastest.
    os.environ.setdefault("OMP_NUM_THREADS", str(settings.threads or cores()))
    os.environ.setdefault("MKL_NUM_THREADS", str(settings.threads or cores()))
    from noria.services.executor.make_runner import make_runner
    from noria.services.executor.service import ExecutorShell

    shells: list[ExecutorShell] = []

    def build(actor: Actor, telemetry: Telemetry) -> ExecutorShell:
        hang_s = config.runtime.hang_timeout_s
        shells.append(ExecutorShell(actor, telemetry, lambda: make_runner(settings, actor.wake), hang_s))
        actor.on_expected_time(shells[0].expected_us)
        actor.on_topic("steps", shells[0].answer_steps)
        return shells[0]

    code = run(Service.EXECUTOR, config, (Service.SCHEDULER,), build)
    if shells and shells[0].failed:
        sys.stderr.write(f"noria executor: {shells[0].failed}\n")
        return 2
    if shells and shells[0].lost_device:
        sys.stderr.write(f"noria executor: the device is lost: {shells[0].lost_device}\n")
        sys.stderr.flush()
        os._exit(1)  # whatever frees memory on a device that is lost may hang
    if shells and shells[0].hung:
        sys.stderr.write("noria executor: a step does not end; this is where it hangs\n")
        leave_hung()
    if shells and shells[0].computing:
        # An interpreter that ends under a thread inside torch aborts the process: leave without it.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


if __name__ == "__main__":
    main(Service.EXECUTOR, start)
