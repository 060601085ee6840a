"""What the scheduler does, step by step, for people who watch: answered when asked, recorded only while somebody asks.

Between two questions a step costs one entry in a bounded queue, which is looked into when it is asked for. Nothing is kept once
nobody has asked for `_WATCHED_NS`.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final, NamedTuple

from noria.proto.execution import Slice, StepPlan
from noria.services.scheduler.core.interface.events import RequestPhase, StreamPhaseChanged
from noria.services.scheduler.core.state.in_flight_steps import InFlightSlice
from noria.services.scheduler.core.state.request import RequestStatus
from noria.services.scheduler.core.state.scheduler_view import RequestView, SchedulerView
from noria.services.scheduler.observe.request_history import RequestHistory

_WATCHED_NS: Final = 3_000_000_000
_SURVEY_NS: Final = 500_000_000
_STEPS_KEPT: Final = 256
_CHANGES_KEPT: Final = 1024
_REQUESTS_SHOWN: Final = 256
_STATES: Final = {
    RequestStatus.WAITING: "waiting",
    RequestStatus.PREFILLING: "prefill",
    RequestStatus.DECODING: "decode",
    RequestStatus.DRAINING: "decode",
}
_PHASES: Final = {
    RequestPhase.QUEUED: "waiting",
    RequestPhase.PREFILLING: "prefill",
    RequestPhase.DECODING: "decode",
    RequestPhase.ENDED: "ended",
}


class _WatchedStep(NamedTuple):
    """A step that was sent: its place among all that were recorded, when, its slices and whose they are."""

    serial: int
    number: int
    at_ns: int
    slices: tuple[Slice, ...]
    entries: Sequence[InFlightSlice]


class _WatchedChange(NamedTuple):
    """A stream that entered another phase while somebody watched."""

    serial: int
    change: StreamPhaseChanged
    traffic_class: str
    tenant: str
    prompt_tokens: int


class LiveView:
    """Answers what the console, `noria top` and Python ask. Times are milliseconds on the scheduler's own clock."""

    def __init__(self, view: SchedulerView, history: RequestHistory) -> None:
        self._view = view
        self._history = history
        self._watched_until_ns = 0
        self._serial = 0
        self._steps: deque[_WatchedStep] = deque(maxlen=_STEPS_KEPT)
        self._changes: deque[_WatchedChange] = deque(maxlen=_CHANGES_KEPT)
        self._served: dict[tuple[str, str], int] = {}
        self._counted_serial = 0
        self._surveyed_ns = 0
        self._survey: dict[str, Any] = {}

    def step_sent(self, plan: StepPlan, now_ns: int) -> None:
        """Record a step that was sent, if somebody watches."""
        if now_ns < self._watched_until_ns:
            self._serial += 1
            entries = self._view.newest_slices
            self._steps.append(_WatchedStep(self._serial, plan.number, now_ns, plan.slices, entries))
        elif self._steps:
            self._steps.clear()
            self._changes.clear()

    def phase_changed(self, change: StreamPhaseChanged) -> None:
        """Record a stream's new phase, if somebody watches."""
        if change.at_ns >= self._watched_until_ns:
            return
        timeline = self._history.about(change.stream)
        self._serial += 1
        whose = (
            (timeline.traffic_class, timeline.tenant, timeline.prompt_tokens) if timeline is not None else ("", "", 0)
        )
        self._changes.append(_WatchedChange(self._serial, change, *whose))

    def answer(self, about: str, now_ns: int) -> dict[str, Any]:
        """What happened since serial number `about`; with none, also the requests that there are.

        A step's cells are slot, request, choice, tokens, and whether they are of a prompt, one after the other in one list.
        """
        since = int(about) if about.isdecimal() else 0
        self._watched_until_ns = now_ns + _WATCHED_NS
        steps = [each for each in self._steps if each.serial > since]
        for step in steps:
            self._count(step)
        answer: dict[str, Any] = {
            "serial": self._serial,
            "now_ms": now_ns / 1e6,
            "steps": [
                {"serial": each.serial, "number": each.number, "at_ms": each.at_ns / 1e6, "cells": list(_cells(each))}
                for each in steps
            ],
            "moves": [_shown(each) for each in self._changes if each.serial > since],
            **self._state(now_ns),
        }
        if not about:
            answer["requests"] = list(self._requests())
        return answer

    def _count(self, step: _WatchedStep) -> None:
        """Add up whose tokens a step held, once."""
        if step.serial <= self._counted_serial:
            return
        self._counted_serial = step.serial
        for entry in step.entries:
            submission = entry.request.asked.submission
            whose = (submission.traffic_class, submission.tenant)
            self._served[whose] = self._served.get(whose, 0) + entry.tokens

    def _state(self, now_ns: int) -> dict[str, Any]:
        """The present counts; those that cost as much as there are requests are taken twice a second at most."""
        view, counts = self._view, self._view.counts()
        if now_ns - self._surveyed_ns >= _SURVEY_NS:
            self._surveyed_ns = now_ns
            self._survey = {"queues": self._queues()}
        return {
            "slots": {"count": counts.slots, "used": counts.slots_used},
            "waiting": counts.waiting,
            "running": counts.running,
            "blocks": [asdict(each) for each in view.blocks()],
            "reserved": view.reserved_pages,
            "policy": view.policy,
            "counters": asdict(view.counters()),
            "epoch": counts.epoch,
            **self._survey,
        }

    def _queues(self) -> list[dict[str, Any]]:
        """Each class and tenant with its weight, its requests and the tokens computed for it while somebody watched."""
        counts: dict[tuple[str, str], list[int]] = {whose: [0, 0, 0] for whose in self._served}
        for request in self._view.requests():
            if request.state is RequestStatus.FINISHED:
                continue
            mine = counts.setdefault((request.traffic_class, request.tenant), [0, 0, 0])
            if request.state is not RequestStatus.WAITING:
                mine[0] += 1
            else:
                mine[2 if request.started else 1] += 1
        rules = self._view.rules
        return [
            {
                "class": name,
                "tenant": tenant,
                "class_weight": rules.class_named(name).weight,
                "rank": rules.class_named(name).rank,
                "tenant_weight": rules.tenants.get(tenant, 1.0),
                "running": running,
                "waiting": waiting,
                "preempted": preempted,
                "tokens": self._served.get((name, tenant), 0),
            }
            for (name, tenant), (running, waiting, preempted) in counts.items()
        ]

    def _requests(self) -> Iterator[dict[str, Any]]:
        """The requests that are known, the running ones first, up to `_REQUESTS_SHOWN`."""
        found = sorted(self._view.requests(), key=lambda each: each.state is RequestStatus.WAITING)
        for request in found[:_REQUESTS_SHOWN]:
            if request.state in _STATES:
                yield _request(request)


def _request(request: RequestView) -> dict[str, Any]:
    return {
        "request": request.stream.request,
        "choice": request.stream.choice,
        "class": request.traffic_class,
        "tenant": request.tenant,
        "prompt_tokens": request.prompt_tokens,
        "output_tokens": request.output_tokens,
        "stage": _STATES[request.state],
        "received_ms": request.received_ns / 1e6,
    }


def _cells(step: _WatchedStep) -> Iterator[int]:
    for part, entry in zip(step.slices, step.entries, strict=True):
        request = entry.request
        yield from (
            part.slot,
            request.stream.request,
            request.stream.choice,
            part.length,
            int(part.length > 1 or part.start < request.asked.prompt_tokens),
        )


def _shown(kept: _WatchedChange) -> dict[str, Any]:
    change = kept.change
    return {
        "serial": kept.serial,
        "request": change.stream.request,
        "choice": change.stream.choice,
        "class": kept.traffic_class,
        "tenant": kept.tenant,
        "prompt_tokens": kept.prompt_tokens,
        "output_tokens": change.output_tokens,
        "stage": _PHASES[change.phase],
        "at_ms": change.at_ns / 1e6,
        "why": change.decision,
    }
