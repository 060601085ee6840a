"""Wiretaps: what the product's own code tells the simulation while it runs, and the invariants that it states."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fakes.simulated.life import Life

from noria.proto.base import Service, Stream
from noria.proto.execution import Failure, StepFailed
from noria.proto.output import TokenRun
from noria.proto.scheduling import Spent
from noria.services.admission import service as admission_module
from noria.services.admission.core import invariants
from noria.services.admission.core.ledger.request import ChoiceState, Request
from noria.services.admission.core.state.admission_state import AdmissionState
from noria.services.admission.core.state.events import RequestLogEntry
from noria.services.admission.core.tenants.token_bucket import TokenBucket
from noria.services.admission.request_log import RequestLog
from noria.services.admission.service import AdmissionService
from noria.services.scheduler.core.interface.events import (
    ExecutorLost,
    ExecutorReturned,
    ExecutorSilent,
    SchedulerEvent,
    SchedulerReply,
)
from noria.services.scheduler.service import SchedulerService
from noria.shared.actor.shell import Shell

# The methods of cores that change something.
_CHANGES = ("apply", "plan", "take", "restore", "collect", "put_back")


@contextmanager
def notes_told(tell: Callable[[RequestLogEntry], None]) -> Iterator[None]:
    """While this lasts, what admission's chronicle is told is told here, too."""

    class Recorded(RequestLog):
        def write(self, written: RequestLogEntry) -> None:
            super().write(written)
            tell(written)

    admission_module.RequestLog = Recorded  # type: ignore[misc]  # a wiretap
    try:
        yield
    finally:
        admission_module.RequestLog = RequestLog  # type: ignore[misc]  # as it was


@contextmanager
def charges_told(tell: Callable[[TokenBucket, int], None]) -> Iterator[None]:
    """While this lasts, every token taken from a bucket is told."""
    take = TokenBucket.take

    def told(self: TokenBucket, tokens: int, now_ns: int) -> None:
        tell(self, tokens)
        take(self, tokens, now_ns)

    TokenBucket.take = told  # type: ignore[method-assign]  # a wiretap
    try:
        yield
    finally:
        TokenBucket.take = take  # type: ignore[method-assign]  # as it was


def check_every_event(shell: Any) -> None:
    """Have a core state its invariants after every event, and after whatever else changes it."""
    core = getattr(shell, "_core", None)
    if core is None:
        return
    check = core.check

    def checked(change: Callable[..., object]) -> Callable[..., object]:
        def change_and_check(*arguments: object) -> object:
            result = change(*arguments)
            check()
            return result

        return change_and_check

    for name in _CHANGES:
        if hasattr(core, name):
            setattr(core, name, checked(getattr(core, name)))


def note_joins(shell: Shell, joined: Callable[[Service], None]) -> None:
    """Tell who joins a process."""
    told = shell.joined

    def join(peer: Service) -> None:
        joined(peer)
        told(peer)

    shell.joined = join  # type: ignore[method-assign]  # a wiretap


def note_failures(shell: Shell, failed: Callable[[set[Stream]], None]) -> None:
    """Tell which streams a scheduler believes to have been in a step that failed, or in flight when the executor died."""
    if not isinstance(shell, SchedulerService):
        return
    core = shell._core
    apply = core.apply
    doubted: set[Stream] = set()

    def streams(number: int | None = None) -> set[Stream]:
        steps = [step for step in core.board.lane.steps if number in (None, step.number)]
        return {entry.request.stream for step in steps for entry in step.entries}

    def tell_and_apply(event: SchedulerEvent) -> list[SchedulerReply]:
        match event.body:
            case ExecutorSilent():
                doubted.update(streams())
            case ExecutorReturned():
                doubted.clear()
            case ExecutorLost():
                failed(doubted | streams())
                doubted.clear()
            case StepFailed(number=number, failure=Failure.ERROR):
                failed(streams(number))
            case _:
                pass
        return apply(event)

    core.apply = tell_and_apply  # type: ignore[method-assign]  # a wiretap


def note_costs(shell: Shell, spent: Callable[[Spent], None]) -> None:
    """Tell what a scheduler finds streams to have cost."""
    if not isinstance(shell, SchedulerService):
        return
    apply = shell._core.apply

    def apply_and_tell(event: SchedulerEvent) -> list[SchedulerReply]:
        replies = apply(event)
        for reply in replies:
            if isinstance(reply, Spent):
                spent(reply)
        return replies

    shell._core.apply = apply_and_tell  # type: ignore[method-assign]  # a wiretap


def note_congestion(shell: Shell, full: Callable[[], None]) -> None:
    """Tell that an outbox of a process was full."""
    told = shell.congested

    def congested(peer: Service) -> None:
        full()
        told(peer)

    shell.congested = congested  # type: ignore[method-assign]  # a wiretap


def note_bundles(shell: Shell, together: Callable[[], None]) -> None:
    """Tell that a scheduler tells a stream's tokens of several steps at once."""
    if not isinstance(shell, SchedulerService):
        return
    bundle = shell._bundle
    take = bundle.take

    def take_and_tell(now_ns: int) -> tuple[TokenRun, ...]:
        held = len(bundle)
        runs = take(now_ns)
        if len(runs) < held:
            together()
        return runs

    bundle.take = take_and_tell  # type: ignore[method-assign]  # a wiretap


def admission_state_of(life: Life) -> AdmissionState:
    """The books of a life of admission."""
    assert isinstance(life.shell, AdmissionService)
    return life.shell._core.state


def begin_again(state: AdmissionState, request: Request, choice: ChoiceState) -> None:
    """Have a stream begin a new attempt from nothing, as whoever can't keep what was emitted would."""
    state.ledger.truncate(choice, choice.attempt + 1, 0, 0)
    state.unsaved.truncated(choice)
    state.delivery.truncate(request, choice)
    state.scheduler.submit(request, choice)
    state.detokenizer.open(request, choice)
    invariants.check(state)
