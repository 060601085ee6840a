"""What admission's state looks like to people and tests: plain values for a snapshot."""

from dataclasses import asdict

from noria.services.admission.core.state.admission_state import AdmissionState
from noria.services.admission.core.tenants.class_totals import StreamMeasure
from noria.services.admission.core.timeouts import RequestTimeouts


def snapshot(books: AdmissionState, patience: RequestTimeouts) -> dict[str, object]:
    """Counts; the first four are zero when nothing is under way."""
    ledger, capacity = books.ledger, books.credit.capacity
    return {
        "requests": len(ledger.live) + len(ledger.tokenizing),
        "streams": ledger.streams,
        "tokenizing": len(ledger.tokenizing),
        "attachments": len(books.delivery.attachments),
        "retained": len(ledger.requests) - len(ledger.live) - len(ledger.tokenizing),
        "orphans": len(books.orphans),
        "unread": len(books.unread),
        "timers": patience.timers,
        "awaited": books.accounts.awaited,
        "clients": len(books.delivery.clients),
        "answers_overflowed": books.delivery.overflowed,
        "waiting_for": books.waiting_for(),
        "totals": books.totals.as_counts(ledger.streams),
        "rejected": {code.value: count for code, count in books.totals.rejected.items()},
        "reclaims": {
            "count": books.reclaims.count,
            "blocks": books.reclaims.blocks,
            "steps_max": books.reclaims.steps_max,
            "steps": books.reclaims.steps,
            "delay_us_max": books.reclaims.delay_us_max,
            "delay_us_mean": books.reclaims.delay_us_sum / max(books.reclaims.count, 1),
        },
        "credit": {
            "sent": books.credit.sent,
            "submitted": capacity.submitted if capacity is not None else 0,
            "largest_tokens": books.credit.largest_tokens,
        },
        "traffic": traffic(books),
        "tenants": tenants(books),
    }


def traffic(books: AdmissionState) -> list[dict[str, object]]:
    """Every account's figures since the start; delays in microseconds, from the end to the last block's return."""
    return [
        {
            "tenant": account.tenant,
            "class": account.traffic_class,
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
        for account, each in books.accounts.traffic.items()
    ]


def tenants(books: AdmissionState) -> dict[str, dict[str, object]]:
    """What each tenant has under way; tokens left in its bucket as last looked at."""
    return {
        each.rule.name: {
            "streams": each.streams,
            "tokens": None if each.bucket is None else round(each.bucket.level(0)),
            "expected_output": each.expected(1 << 30),
        }
        for each in books.tenants
    }
