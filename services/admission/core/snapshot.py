"""Turns the state of admission into plain values for `/debug/state` and tests."""

from dataclasses import asdict

from noria.services.admission.core.state.admission_state import AdmissionState
from noria.services.admission.core.tenants.class_totals import StreamMeasure
from noria.services.admission.core.timeouts import RequestTimeouts


def snapshot(state: AdmissionState, timeouts: RequestTimeouts) -> dict[str, object]:
    """Counts; the first four are zero when nothing is under way."""
    ledger, capacity = state.ledger, state.credit.capacity
    return {
        "requests": len(ledger.live) + len(ledger.tokenizing),
        "streams": ledger.streams,
        "tokenizing": len(ledger.tokenizing),
        "attachments": len(state.delivery.attachments),
        "retained": len(ledger.requests) - len(ledger.live) - len(ledger.tokenizing),
        "orphans": len(state.orphans),
        "unread": len(state.unread),
        "timers": timeouts.timers,
        "awaited": state.usage_counters.awaited,
        "clients": len(state.delivery.clients),
        "answers_overflowed": state.delivery.overflowed,
        "waiting_for": state.waiting_for(),
        "totals": state.totals.as_counts(ledger.streams),
        "rejected": {code.value: count for code, count in state.totals.rejected.items()},
        "reclaims": {
            "count": state.reclaims.count,
            "blocks": state.reclaims.blocks,
            "steps_max": state.reclaims.steps_max,
            "steps": state.reclaims.steps,
            "delay_us_max": state.reclaims.delay_us_max,
            "delay_us_mean": state.reclaims.delay_us_sum / max(state.reclaims.count, 1),
        },
        "credit": {
            "sent": state.credit.sent,
            "submitted": capacity.submitted if capacity is not None else 0,
            "largest_tokens": state.credit.largest_tokens,
        },
        "traffic": class_totals(state),
        "tenants": tenants(state),
    }


def class_totals(state: AdmissionState) -> list[dict[str, object]]:
    """Counters of every tenant and class since the journal began; delays in microseconds, from the end to the last block's return."""
    return [
        {
            "tenant": usage_key.tenant,
            "class": usage_key.traffic_class,
            "accepted": each.accepted,
            "ended": {end.label: count for end, count in each.ended.items() if count},
            "refused": {code.value: count for code, count in each.refused.items()},
            "used": asdict(each.used),
            "reclaims": each.of(StreamMeasure.RECLAIM).count,
            "reclaim_us_mean": each.of(StreamMeasure.RECLAIM).total
            / 1000
            / max(each.of(StreamMeasure.RECLAIM).count, 1),
            "reclaim_us_max": each.reclaim_us_max,
        }
        for usage_key, each in state.usage_counters.class_totals.items()
    ]


def tenants(state: AdmissionState) -> dict[str, dict[str, object]]:
    """What each tenant has under way; tokens left in its bucket as last looked at."""
    return {
        each.rule.name: {
            "streams": each.streams,
            "tokens": None if each.bucket is None else round(each.bucket.level(0)),
            "expected_output": each.expected(1 << 30),
        }
        for each in state.tenants
    }
