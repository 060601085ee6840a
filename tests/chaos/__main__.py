"""Kills processes of a real stack under load and checks that every answer comes whole: `python -m chaos --help`."""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from chaos.chaos_run import ChaosSettings, run_chaos
from chaos.kill_plan import SERVICES
from fakes.tiny_model import build_tiny_model


def main() -> int:
    """Run once; returns 1 when an answer was lost."""
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--blows", type=int, default=100, help="how many kills")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--http", type=int, default=8, help="how many of the streams are read over HTTP")
    parser.add_argument("--gap", type=float, nargs=2, default=(1.0, 2.0), help="seconds from one kill to the next")
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds after which nothing more is killed")
    parser.add_argument("--victims", nargs="+", choices=SERVICES, default=list(SERVICES))
    parser.add_argument("--alone", action="store_true", help="one service after the other, nothing else")
    parser.add_argument("--tokens", type=int, nargs=2, default=(200, 800), help="length of answers")
    parser.add_argument("--model", default="", help="a model to serve; a tiny random one where absent")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--keep-log", type=Path, help="where to leave the stack's log")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="noria-chaos-") as folder:
        model = options.model or str(build_tiny_model(Path(folder) / "tiny"))
        settings = ChaosSettings(
            model=model, seed=options.seed, kills=options.blows, streams=options.streams, http=options.http,
            gap_s=tuple(options.gap), victims=tuple(options.victims), alone=options.alone, tokens=tuple(options.tokens),
            limit_s=options.limit, log=options.keep_log,
        )  # fmt: skip
        found = asyncio.run(run_chaos(settings))
    print(found.table())
    if options.json is not None:
        options.json.write_text(found.json() + "\n")
    return 1 if found.lost else 0


if __name__ == "__main__":
    sys.exit(main())
