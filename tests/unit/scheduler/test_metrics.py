"""The board's counts become metrics at most once a second, and at the end."""

from fakes.collector import Collector
from fakes.desk import submission
from msgspec.structs import replace

from noria.proto.base import Service
from noria.proto.scheduling import Submit
from noria.services.scheduler.core.events import Event
from noria.services.scheduler.core.scheduler import Scheduler
from noria.services.scheduler.core.settings import Settings
from noria.services.scheduler.metrics import BoardMetrics
from noria.shared.config import TelemetrySettings
from noria.shared.telemetry import Telemetry

SECOND_NS = 1_000_000_000


def exported(*, advance_again_ns: int | None, closing: bool) -> Collector:
    """Publish one eviction at 0, then count four more and advance or close; what the collector has got."""
    with Collector() as collector:
        telemetry = Telemetry(Service.SCHEDULER, 1, TelemetrySettings(otlp_endpoint=collector.url))
        board = Scheduler(Settings()).board
        metrics = BoardMetrics(telemetry, board)
        board.counters.evictions = 1
        metrics.advance(0)
        board.counters.evictions = 5
        if advance_again_ns is not None:
            metrics.advance(advance_again_ns)
        if closing:
            metrics.close()
        telemetry.close()
    return collector


def test_counts_are_not_published_again_within_a_second() -> None:
    collector = exported(advance_again_ns=SECOND_NS - 1, closing=False)
    assert collector.latest("noria.cache.evictions") == 1


def test_counts_are_published_again_after_a_second() -> None:
    collector = exported(advance_again_ns=SECOND_NS, closing=False)
    assert collector.latest("noria.cache.evictions") == 5


def test_the_last_counts_are_published_at_the_end() -> None:
    collector = exported(advance_again_ns=None, closing=True)
    assert collector.latest("noria.cache.evictions") == 5


def test_without_an_executor_no_blocks_are_reported() -> None:
    collector = exported(advance_again_ns=None, closing=True)
    assert "noria.cache.blocks" not in collector.metrics
    assert collector.latest("noria.requests", state="waiting") == 0


def test_shares_are_published_by_class_and_tenant() -> None:
    with Collector() as collector:
        telemetry = Telemetry(Service.SCHEDULER, 1, TelemetrySettings(otlp_endpoint=collector.url))
        core = Scheduler(Settings(policy="fair"))
        metrics = BoardMetrics(telemetry, core.board)
        core.apply(
            Event(0, Submit((replace(submission(1), tenant="someone"), replace(submission(2), tenant="someone"))))
        )
        metrics.advance(0)
        metrics.close()
        telemetry.close()
    of = {"class": "standard", "tenant": "someone"}
    assert collector.latest("noria.share.waiting", **of) == 2
    assert collector.latest("noria.share.service", **of) == 0
