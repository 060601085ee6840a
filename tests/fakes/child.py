"""A stand-in for any service: greets, reports ready, and misbehaves on request.

`python child.py MODULE --config FILE`; the variable CHILD_MISBEHAVIOUR says `SERVICE=what`: exit2, bug (raises), deaf
(ignores SIGTERM), slow (never ready), mute (never greets), stuck (busy without progress) or lingers (takes 4 s to close).
"""

import os
import signal
import sys
import time
from typing import Any

import msgspec

from noria.proto.base import Header, Service
from noria.proto.lifecycle import State
from noria.shared.actor.actor import Actor
from noria.shared.config.config import Config
from noria.shared.process.service_process import main, run

SERVICE = Service(sys.argv.pop(1).rpartition(".")[2])
MISBEHAVIOUR = dict(part.split("=") for part in os.environ.get("CHILD_MISBEHAVIOUR", "").split() if part)
WHAT = MISBEHAVIOUR.get(SERVICE.value, "")


class Child:
    drained = False

    def receive(self, sender: Service, header: Header, body: msgspec.Struct) -> None: ...

    def joined(self, peer: Service) -> None: ...

    def lost(self, peer: Service) -> None: ...

    def congested(self, peer: Service) -> None: ...

    def advance(self, now_ns: int) -> int | None:
        if WHAT == "bug":
            raise RuntimeError("a bug of ours")
        return None

    def state(self) -> State:
        if self.drained:
            return State.STOPPED
        return State.STARTING if WHAT == "slow" else State.READY

    def progress(self) -> tuple[int, bool]:
        return 0, WHAT == "stuck"

    def snapshot(self) -> dict[str, Any]:
        return {"cwd": os.getcwd(), "session": os.getsid(0), "noria": sorted(n for n in os.environ if n[:5] == "NORIA")}

    def drain(self, timeout_ms: int) -> None:
        print(f"drains {SERVICE.value} {timeout_ms}", flush=True)
        self.drained = True

    def close(self) -> None:
        if WHAT == "lingers":
            time.sleep(4)
        print(f"closed {SERVICE.value}", flush=True)


def start(config: Config) -> int:
    def build(actor: Actor, telemetry: object) -> Child:
        if WHAT == "mute":
            time.sleep(1000)
        if WHAT == "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return Child()

    if WHAT == "exit2":
        time.sleep(0.05)
        sys.stderr.write(f"noria {SERVICE.value}: a mistake of yours\n")
        return 2
    return run(SERVICE, config, (), build)


if __name__ == "__main__":
    main(SERVICE, start)
