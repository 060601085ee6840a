"""Which plans are computed and whose results are sent: the executor's side of an epoch.

Pure: the shell says what arrived and what was computed, and sends what is returned here. An epoch begins with a plan
numbered 1 and ends with a failure, a plan that cannot be applied, or a scheduler that is told of an inventory.
"""

from collections import deque
from typing import Final, Generic, NamedTuple, TypeVar

from noria.proto.execution import Failure, Inventory, Sampled, StepFailed, StepPlan
from noria.services.executor.plan.batch import Batch
from noria.services.executor.plan.batch_builder import prepare, results
from noria.services.executor.plan.inventory import inventory
from noria.services.executor.plan.limits import ExecutorLimits
from noria.services.executor.plan.sampling_metadata import SamplerOutput
from noria.services.executor.plan.slot_table import IllegalPlanError, SlotTable

WAITING_PLANS_MAX: Final = 8
"""How many plans may wait to be computed; one more is a scheduler that does not count its steps in flight."""

Note = TypeVar("Note")


class QueuedPlan(NamedTuple):
    """A plan that waits to be computed. traceparent: of the message that brought it."""

    plan: StepPlan
    traceparent: str


class FinishedStep(NamedTuple, Generic[Note]):
    """A step of the living epoch that was computed.

    note: what the shell noted when it was posted. sampled: its tokens in plan order. wanted: whether a scheduler waits
    for them; else they are part of the inventory that is due.
    """

    note: Note
    sampled: tuple[Sampled, ...]
    wanted: bool


class PlanQueue(Generic[Note]):
    """Plans that wait, batches that are being computed, and the slots they change.

    inventory_due: a scheduler was told that an inventory follows, and it was not sent yet.
    """

    def __init__(self) -> None:
        self.inventory_due = False
        self._slots: SlotTable | None = None
        self._waiting: deque[QueuedPlan] = deque()
        self._posted: deque[tuple[Batch, Note]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def slots_used(self) -> int:
        """How many slots hold a stream; 0 before the model is loaded."""
        return self._slots.used() if self._slots else 0

    def open(self, shape: ExecutorLimits) -> None:
        """Accept plans from now on: the model is loaded."""
        self._slots = SlotTable(shape)

    def add(self, plan: StepPlan, traceparent: str) -> StepFailed | None:
        """Queue a plan that arrived. Returns the failure to be sent when too many wait."""
        if self._slots is None:
            return None  # planned for a predecessor of this process, which has sent no geometry yet
        if plan.number == 1:
            # What is under way was given up, and who opens an epoch waits for no inventory.
            self.inventory_due = False
            self._waiting.clear()
            self._posted.clear()
        if len(self._waiting) < WAITING_PLANS_MAX:
            self._waiting.append(QueuedPlan(plan, traceparent))
            return None
        return self.fail(plan.epoch, plan.number, Failure.INVALID, f"more than {WAITING_PLANS_MAX} plans are waiting")

    def scheduler_joined(self) -> None:
        """Drop the former scheduler's plans. An inventory is due if any stream is still known, else all is forgotten."""
        self._waiting.clear()
        slots = self._slots
        self.inventory_due = slots is not None and bool(
            slots.used() or len(slots.swapped_out) or len(slots.released_slots)
        )
        if not self.inventory_due:
            self.forget()

    def scheduler_lost(self) -> None:
        """Drop the plans that wait; slots and cache are kept for the next scheduler."""
        self._waiting.clear()
        self.inventory_due = False

    def forget(self) -> None:
        """End the epoch and empty all slots and the host pool."""
        self._waiting.clear()
        self._posted.clear()
        if self._slots is not None:
            self._slots.clear()
            self._slots.swapped_out.clear()

    def take_inventory(self) -> Inventory | None:
        """The inventory that is due, once; ends the epoch. To be called while no batch is being computed."""
        if not self.inventory_due:
            return None
        assert self._slots is not None
        self.inventory_due = False
        self._slots.rest()
        return inventory(self._slots)

    def next(self) -> QueuedPlan | None:
        """Take the next plan of the living epoch, or one that opens an epoch; others are discarded unanswered."""
        while self._waiting:
            queued = self._waiting.popleft()
            assert self._slots is not None
            if self._slots.belongs(queued.plan):
                return queued
        return None

    def prepare(self, plan: StepPlan) -> Batch | StepFailed:
        """Apply a plan to the slots and lay it out. Returns the failure to be sent when it breaks the protocol."""
        assert self._slots is not None
        try:
            return prepare(self._slots, plan)
        except IllegalPlanError as error:
            return self.fail(plan.epoch, plan.number, Failure.INVALID, str(error))

    def post(self, batch: Batch, note: Note) -> None:
        """Remember a batch that is about to be computed. Batches finish in the order in which they were posted."""
        self._posted.append((batch, note))

    def finish(self, batch: Batch, drawn: SamplerOutput | None) -> FinishedStep[Note] | None:
        """Take a computed batch's tokens into the slots; None when its epoch is over."""
        note = self._take(batch)
        if note is None:
            return None
        assert self._slots is not None
        return FinishedStep(note, results(self._slots, batch, drawn), wanted=not self.inventory_due)

    def failed(self, batch: Batch) -> bool:
        """Take a batch that could not be computed; whether its epoch is alive, and so must be failed."""
        return self._take(batch) is not None

    def fail(self, epoch: int, number: int, failure: Failure, detail: str) -> StepFailed:
        """End the epoch and forget everything. Returns the failure to be sent."""
        self.forget()
        return StepFailed(epoch, number, failure, detail)

    def _take(self, batch: Batch) -> Note | None:
        """The note of the batch that was posted first; None when it was forgotten with its epoch."""
        if self._posted and self._posted[0][0] is batch:
            return self._posted.popleft()[1]
        return None
