"""A process that does nothing but emit and put on record: `python -m fakes.journal_writer FILE [TURNS]`.

It goes on until it is killed, or closes the file in order after so many turns. After each commit it says, in one line, how
many tokens of each stream are on record.
"""

import os
import sys
import time
from pathlib import Path

from fakes.admission_bench import Bench, token_request

from noria.proto.output import TextRun, Texts
from noria.services.admission.storage.journal import open_journal
from noria.services.admission.storage.journal_records import WallClockOffset

STREAMS = 6


def token(number: int, position: int) -> int:
    """What stream `number` emits at a position."""
    return (number * 7 + position * 3) % 900


def main() -> None:
    """Emit until killed."""
    bench = Bench(context_tokens=1 << 20, client_timeout_ns=1 << 60)
    bench.now_ns = time.monotonic_ns()
    database, journal = open_journal(Path(sys.argv[1]), kept=True)
    assert journal is not None
    bench.core.recover(journal.read(bench.now_ns, WallClockOffset.read()), bench.now_ns)
    bench.ready()
    bench.capacity(tokens=1 << 40, largest=1 << 20)
    known = {request.key.id for request in bench.core.state.ledger.requests.values()}
    for number in range(STREAMS):
        if f"r{number}" not in known:
            bench.core.state.ledger.draw_number()
            bench.send("client-writer", token_request(f"r{number}", max_tokens=1 << 19))
    turn, last = 0, int(sys.argv[2]) if len(sys.argv) > 2 else 0
    while not last or turn < last:
        turn += 1
        runs = []
        for request, choice in bench.core.state.unfinished():
            number, start = int(request.key.id[1:]), len(choice.ids)
            ids = tuple(token(number, start + each) for each in range(1 + (turn + number) % 3))
            runs.append(TextRun(choice.stream, 0, start, ids, start, "x" * len(ids)))
        bench.from_peer(Texts(tuple(runs)))
        bench.now_ns = time.monotonic_ns()
        page = bench.core.next_page(bench.now_ns)
        assert page is not None and journal.write(page, WallClockOffset.read())
        bench.core.page_written(page)
        lengths = [len(choice.ids) for _, choice in bench.core.state.unfinished()]
        os.write(1, (" ".join(map(str, lengths)) + "\n").encode())
    database.close()


if __name__ == "__main__":
    main()
