"""Observes the product's own code while a simulation runs, by wrapping its methods, and checks its invariants."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fakes.simulated.machine.process import SimulatedProcess

from noria.proto.base import Service, Stream
from noria.proto.execution import Failure, StepFailed
from noria.proto.output import TokenRun
from noria.proto.scheduling import Spent
from noria.services.admission import service as admission_module
from noria.services.admission.core import invariants
from noria.services.admission.core.ledger.request import ChoiceRecord, Request
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

# The methods that change a core.
_CHANGING_METHODS = ("apply", "plan", "take", "restore", "collect", "put_back")


@contextmanager
def observed_notes(log: Callable[[RequestLogEntry], None]) -> Iterator[None]:
    """Call a function with every line of admission's request log while the body runs."""

    class Recorded(RequestLog):
        def write(self, written: RequestLogEntry) -> None:
            super().write(written)
            log(written)

    admission_module.RequestLog = Recorded  # type: ignore[misc]  # observed
    try:
        yield
    finally:
        admission_module.RequestLog = RequestLog  # type: ignore[misc]  # as it was


@contextmanager
def observed_charges(log: Callable[[TokenBucket, int], None]) -> Iterator[None]:
    """Call a function for every charge to a token bucket while the body runs."""
    take = TokenBucket.take

    def told(self: TokenBucket, tokens: int, now_ns: int) -> None:
        log(self, tokens)
        take(self, tokens, now_ns)

    TokenBucket.take = told  # type: ignore[method-assign]  # observed
    try:
        yield
    finally:
        TokenBucket.take = take  # type: ignore[method-assign]  # as it was


def check_invariants_after_events(shell: Any) -> None:
    """Make a core check its invariants after every call that changes it."""
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

    for name in _CHANGING_METHODS:
        if hasattr(core, name):
            setattr(core, name, checked(getattr(core, name)))


def observe_joins(shell: Shell, joined: Callable[[Service], None]) -> None:
    """Call a function with each peer that joins a process."""
    told = shell.joined

    def join(peer: Service) -> None:
        joined(peer)
        told(peer)

    shell.joined = join  # type: ignore[method-assign]  # observed


def observe_failed_steps(shell: Shell, failed: Callable[[set[Stream]], None]) -> None:
    """Call a function with the streams of each failed step, and with those in flight when the executor died."""
    if not isinstance(shell, SchedulerService):
        return
    core = shell._core
    apply = core.apply
    doubted: set[Stream] = set()

    def streams(number: int | None = None) -> set[Stream]:
        steps = [step for step in core.state.in_flight.steps if number in (None, step.number)]
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

    core.apply = tell_and_apply  # type: ignore[method-assign]  # observed


def observe_costs(shell: Shell, spent: Callable[[Spent], None]) -> None:
    """Call a function with each cost report of a scheduler."""
    if not isinstance(shell, SchedulerService):
        return
    apply = shell._core.apply

    def apply_and_tell(event: SchedulerEvent) -> list[SchedulerReply]:
        replies = apply(event)
        for reply in replies:
            if isinstance(reply, Spent):
                spent(reply)
        return replies

    shell._core.apply = apply_and_tell  # type: ignore[method-assign]  # observed


def observe_full_outboxes(shell: Shell, full: Callable[[], None]) -> None:
    """Call a function whenever an outbox of a process is full."""
    told = shell.congested

    def congested(peer: Service) -> None:
        full()
        told(peer)

    shell.congested = congested  # type: ignore[method-assign]  # observed


def observe_joined_tokens(shell: Shell, together: Callable[[], None]) -> None:
    """Call a function whenever a scheduler sends a stream's tokens of several steps at once."""
    if not isinstance(shell, SchedulerService):
        return
    bundle = shell._batches
    take = bundle.take

    def take_and_tell(now_ns: int) -> tuple[TokenRun, ...]:
        held = len(bundle)
        runs = take(now_ns)
        if len(runs) < held:
            together()
        return runs

    bundle.take = take_and_tell  # type: ignore[method-assign]  # observed


def admission_state_of(process: SimulatedProcess) -> AdmissionState:
    """Return the core's state of an admission process."""
    assert isinstance(process.shell, AdmissionService)
    return process.shell._core.state


def restart_stream(state: AdmissionState, request: Request, choice: ChoiceRecord) -> None:
    """Make a stream begin a new attempt from nothing, as when what was emitted could not be kept."""
    state.ledger.truncate(choice, choice.attempt + 1, 0, 0)
    state.unsaved.truncated(choice)
    state.delivery.truncate(request, choice)
    state.scheduler.submit(request, choice)
    state.detokenizer.open(request, choice)
    invariants.check(state)
