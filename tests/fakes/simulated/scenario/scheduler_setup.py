"""Draws the scheduler's settings and the executor's cache geometry of one run."""

import random

import msgspec
from fakes import world
from fakes.simulated.machine.fault_rates import FaultRates

from noria.proto.execution import Geometry
from noria.services.scheduler.core.interface.settings import CoreSettings
from noria.services.scheduler.core.interface.traffic_rules import FairRules


def draw_settings(draw: random.Random, rates: FaultRates, rules: FairRules | None) -> CoreSettings:
    """Draw settings with small limits. rules: those of traffic classes; None draws a policy without classes."""
    return CoreSettings(
        policy=draw.choice(["fifo", "prefill_first"]) if rules is None else "fair",
        rules=rules or FairRules(),
        max_batch_tokens=draw.choice([2, 3, 7, 16, 64]),
        # A class that is isolated and one that is not need a slot each.
        max_requests_per_batch=draw.choice([1, 2, 4, 8] if rules is None else [2, 4, 8]),
        max_cache_tokens=draw.choice([None, None, 60]),
        steps_in_flight=draw.choice([1, 2, 2]),
        stop_lookahead=draw.choice([1, 2, 4]),
        safety_margin=draw.choice([None, 0.0, 0.0, 0.0]),
        allow_block_sharing=draw.random() < 0.8,
        queue_requests_max=rates.queue_requests_max,
        queue_tokens_max=rates.queue_tokens_max,
    )


def draw_geometry(draw: random.Random, max_batch_tokens: int, *, ample: bool) -> Geometry:
    """Draw a cache that holds little more than the longest request, often with host memory; or an ample one."""
    geometry = world.draw_geometry(draw, max_batch_tokens)
    if ample:
        return msgspec.structs.replace(geometry, num_blocks=16 * geometry.num_blocks)
    if draw.random() < 0.5:
        geometry = msgspec.structs.replace(geometry, host_slots=2 * geometry.num_blocks)
    return geometry
