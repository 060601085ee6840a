"""When tokens are sent: those of several short steps in one message, as long as nobody waits for them.

A message wakes detokenizer, admission and gateway one after the other, and a service that runs beside computing threads finds
its caches empty each time. With few streams, whose steps take a few milliseconds, that makes every step a tenth longer. So
plain continuations are held back for an interval. Whether it is over is decided as steps end, which wakes this process anyway.
Knows no clock and no socket.
"""

from collections.abc import Container
from itertools import chain

from msgspec.structs import replace

from noria.proto.base import Stream
from noria.proto.output import TokenRun
from noria.services.scheduler.core.interface.events import RequestPhase, StreamPhaseChanged
from noria.services.scheduler.core.state.scheduler_view import SchedulerView


class TokenBatches:
    """Runs of tokens that have not been sent yet. interval_ns: how long they are held back, 0 for not at all.

    Never held back is what somebody waits for: a stream's first token, also after it waited or was computed again, its end,
    answers to requests for tokens, and all of streams with stop strings, which go on only as far as their text was looked at.
    """

    def __init__(self, view: SchedulerView, interval_ns: int) -> None:
        self._view = view
        self._interval_ns = interval_ns
        self._runs: list[TokenRun] = []
        self._awaited = False
        self._sent_ns = 0

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def due_ns(self) -> int | None:
        """The latest time at which they are sent, should the step under way take longer than predicted; None without any."""
        return self._sent_ns + self._interval_ns * 3 // 2 if self._runs else None

    def add(self, run: TokenRun, *, asked: bool) -> None:
        """Hold a run of tokens. asked: it answers somebody; else it comes from a step."""
        self._runs.append(run)
        if not self._awaited:
            plain = not asked and run.start > 0 and not run.end and len(run.ids) == 1
            self._awaited = not plain or self._view.has_stop_strings(run.stream) is not False

    def phase_changed(self, change: StreamPhaseChanged) -> None:
        """Note a stream's new phase: when it begins to decode, its first token is waited for."""
        self._awaited = self._awaited or change.phase is RequestPhase.DECODING

    def due(self, now_ns: int) -> bool:
        """Whether the runs are to be sent now; if not, the step under way ends soon enough."""
        if self.due_ns is None:
            return False
        ends_ns = self._view.next_result_ns
        return self._awaited or not 0 < ends_ns < self._sent_ns + self._interval_ns or now_ns >= self.due_ns

    def take(self, now_ns: int) -> tuple[TokenRun, ...]:
        """All runs, consecutive ones of a stream joined; they count as sent now."""
        runs, self._runs, self._awaited, self._sent_ns = self._runs, [], False, now_ns
        return tuple(map(_joined, _chains(runs)))

    def drop(self, streams: Container[Stream]) -> list[TokenRun]:
        """Take back the runs of some streams, which are sent in another way."""
        dropped = [run for run in self._runs if run.stream in streams]
        self._runs = [run for run in self._runs if run.stream not in streams]
        return dropped

    def clear(self) -> None:
        """Drop all runs: whoever lacks them asks for them."""
        self._runs.clear()


def _chains(runs: list[TokenRun]) -> list[list[TokenRun]]:
    """Runs that continue one another, those of a stream in order."""
    chains: list[list[TokenRun]] = []
    newest: dict[Stream, list[TokenRun]] = {}
    for run in runs:
        known = newest.get(run.stream)
        if known is not None and _continues(known[-1], run):
            known.append(run)
        else:
            newest[run.stream] = [run]
            chains.append(newest[run.stream])
    return chains


def _continues(before: TokenRun, run: TokenRun) -> bool:
    # Likelihoods are of each id or of none.
    alike = bool(before.likelihoods) == bool(run.likelihoods)
    return run.start == before.start + len(before.ids) and run.attempt == before.attempt and not before.end and alike


def _joined(runs: list[TokenRun]) -> TokenRun:
    if len(runs) == 1:
        return runs[0]
    ids = tuple(chain.from_iterable(run.ids for run in runs))
    likelihoods = tuple(chain.from_iterable(run.likelihoods for run in runs))
    return replace(runs[-1], start=runs[0].start, ids=ids, likelihoods=likelihoods)
