"""The count of experts whose weights were read: on the device, between steps, in the metrics."""

import torch
from fakes.sampling import drawn

from noria.services.executor.kv_cache.memory_plan import MemoryPlan
from noria.services.executor.metrics import DeviceMetrics
from noria.services.executor.model.expert_reads import ExpertReads, difference
from noria.services.executor.plan.batch_builder import idle_batch
from noria.services.executor.plan.limits import ExecutorLimits
from noria.services.executor.runner.loaded_model import LoadedModel, geometry_of
from noria.services.executor.runner.model_runner import StepComputed
from noria.shared.telemetry.instruments import DEVICE_EXPERTS

SHAPE = ExecutorLimits(4, 64, 64, 16, 8, 50)


def test_experts_with_rows_are_counted_layer_by_layer() -> None:
    read = ExpertReads()
    read.add(torch.tensor([0, 3, 1, 0]))
    read.add(torch.tensor([4, 0, 0, 0]))
    assert read.total.tolist() == [3]


def test_a_total_that_wrapped_differs_by_what_was_read() -> None:
    read = ExpertReads()
    read.total.fill_(2**31 - 1)
    before = int(read.total)
    read.add(torch.tensor([1, 1, 0]))
    assert difference(int(read.total), before) == 2


def test_metrics_tell_of_experts_where_a_model_has_them() -> None:
    geometry = geometry_of("m", SHAPE, torch.float32, 1)
    metrics = DeviceMetrics()
    metrics.loaded(LoadedModel(SHAPE, geometry, 1, MemoryPlan(0, (), 0, 0), 0.0, batch_invariant=True))
    batch = idle_batch(SHAPE)
    metrics.step(1, StepComputed(batch, drawn(()), 10, 0), 1)
    assert not [each for each in metrics.values() if each.metric is DEVICE_EXPERTS]
    for count in (5, 2):
        metrics.step(1, StepComputed(batch, drawn(()), 10, 0, experts=count), 1)
    assert [each.number for each in metrics.values() if each.metric is DEVICE_EXPERTS] == [7]
