"""How a service process begins: read the configuration, name itself, take its lock, run its shell on an actor."""

import argparse
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import setproctitle
import zmq

from noria.proto.base import Service
from noria.shared.actor.actor import Actor
from noria.shared.actor.endpoints import mailbox, prepare_runtime_dir, runtime_dir
from noria.shared.actor.mailbox import Mailbox
from noria.shared.actor.shell import Shell
from noria.shared.config.config import Config
from noria.shared.config.sources import CONFIG_VARIABLE, load
from noria.shared.errors import UserError
from noria.shared.process.crash_log import log_crashes
from noria.shared.process.garbage_collection import GarbageCollection, freeze_start_up_objects
from noria.shared.process.locks import Lock, LockRecord
from noria.shared.process.watchdog import Watchdog
from noria.shared.telemetry.log import configure, logger
from noria.shared.telemetry.process_metrics import ProcessMetrics
from noria.shared.telemetry.telemetry import Telemetry

_OPEN_FILES: Final = 65_536
_LEAVE_S: Final = 0.5


def main(service: Service, start: Callable[[Config], int]) -> None:
    """Run `python -m noria.services.X --config FILE`: load, name, run; a user's mistake exits 2 with one line."""
    parser = argparse.ArgumentParser(prog=f"noria {service.value}")
    parser.add_argument("--config", help="TOML or JSON configuration file", default=None)
    arguments = parser.parse_args()
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        config = _with_source(load(arguments.config), arguments.config)
        setproctitle.setproctitle(f"noria: {service.value}")
        configure(config.log)
        if config.runtime.supervised:
            log_crashes(runtime_dir(config.runtime), service.value)
        _allow_open_files()
        sys.exit(start(config))
    except UserError as error:
        sys.stderr.write(f"noria {service.value}: {error}\n")
        sys.exit(2)
    except KeyboardInterrupt:  # before the service listens to signals
        sys.exit(128 + signal.SIGINT)


def _with_source(config: Config, path: str | None) -> Config:
    """Note which file SIGHUP reads again: the one that was named, unless it says itself which it was made from."""
    path = path or os.environ.get(CONFIG_VARIABLE)
    if not path or config.runtime.config_file or path.startswith("/dev/fd/"):
        return config
    runtime = msgspec.structs.replace(config.runtime, config_file=str(Path(path).absolute()))
    return msgspec.structs.replace(config, runtime=runtime)


def reload(service: Service, config: Config, take: Callable[[Config], None]) -> None:
    """Read the file of the configuration again and hand over its classes and tenants, nothing else.

    What is wrong with it is logged, and nothing changes.
    """
    log = logger(service.value)
    path = config.runtime.config_file
    if not path:
        log.warning("hang-up ignored: no configuration file was named at the start")
        return
    try:
        read = load(path, {}, {})
    except UserError as error:
        log.error("configuration not reloaded", error=str(error))
        return
    log.info("configuration reloaded", file=path, classes=len(read.classes), tenants=len(read.tenants))
    take(msgspec.structs.replace(config, classes=read.classes, tenants=read.tenants))


def _allow_open_files() -> None:
    """Every connection is an open file: allow more than the usual 1024 where the user may."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if most == resource.RLIM_INFINITY else min(most, _OPEN_FILES)
    if now != resource.RLIM_INFINITY and now < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def peer_endpoints(config: Config, others: tuple[Service, ...]) -> dict[Service, str]:
    """The endpoints of the named peers, and of the supervisor when there is one."""
    wanted = (*others, Service.SUPERVISOR) if config.runtime.supervised else others
    return {peer: mailbox(config.runtime, peer) for peer in wanted}


def attach_telemetry(actor: Actor, telemetry: Telemetry) -> None:
    """Have an actor answer `Inspect` for the topics `who`, `metrics` and `spans`, and feed the OTLP exporter."""
    process_metrics = ProcessMetrics(actor.service, actor.mailbox.incarnation, actor.mailbox.counts)
    telemetry.add(process_metrics)
    actor.on_topic("who", process_metrics.answer)
    actor.on_topic("metrics", telemetry.answer_metrics)
    actor.on_topic("spans", telemetry.answer_spans)
    actor.each_turn(telemetry.advance)


def run(
    service: Service,
    config: Config,
    others: tuple[Service, ...],
    build: Callable[[Actor, Telemetry], Shell],
) -> int:
    """Take the service's lock, bind its mailbox and run the shell that `build` makes until SIGTERM; returns 0.

    Raises UserError when another process is this service in the same runtime folder, or the endpoint is taken.
    """
    folder = prepare_runtime_dir(config.runtime)
    lock = Lock(folder, service.value)
    endpoint = mailbox(config.runtime, service, binding=True)
    holder = lock.acquire(LockRecord(service.value, os.getpid(), ""))
    if holder is not None:
        raise UserError(
            f"{service.value} already runs in {folder} as process {holder.pid}; stop it or choose another --runtime-dir"
        )
    try:
        post = Mailbox(service, endpoint, peer_endpoints(config, others), config.runtime)
    except zmq.ZMQError as error:
        raise UserError(
            f"cannot bind {endpoint}: {error.strerror}; choose another --runtime-dir or --base-port"
        ) from error
    lock.sign(LockRecord(service.value, os.getpid(), f"{post.incarnation:x}"))
    telemetry = Telemetry(service, post.incarnation, config.telemetry)
    actor = Actor(post, config.runtime)
    actor.stop_on_signals()
    attach_telemetry(actor, telemetry)
    actor.on_leave(lock.release)
    shell = build(actor, telemetry)
    freeze_start_up_objects()
    garbage = GarbageCollection()
    garbage.start()
    actor.add_to_snapshot("garbage", garbage.counts)
    actor.each_turn(lambda now_ns: garbage.collect_when_idle(now_ns, shell.progress))
    watchdog = Watchdog(service.value, config.runtime.hang_timeout_s)
    actor.each_turn(watchdog.turned)
    actor.before_close(watchdog.allow)
    logger(service.value).info("service started", endpoint=endpoint, incarnation=f"{post.incarnation:x}")
    watchdog.start()
    try:
        actor.run(shell)
    finally:
        watchdog.stop()
        garbage.close()
        telemetry.close()
        lock.release()
        _let_mail_leave()
    return 0


def _let_mail_leave() -> None:
    """Wait up to half a second for messages just sent: a thread of ZeroMQ sends them, which dies with the process."""
    leaving = threading.Thread(target=zmq.Context.instance().term, daemon=True)
    leaving.start()
    leaving.join(_LEAVE_S)  # a socket that somebody left open would keep it for ever
