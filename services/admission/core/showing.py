"""What admission's state looks like to people and tests: plain values for a snapshot."""

from dataclasses import asdict

from noria.services.admission.core.books import Books


def traffic(books: Books) -> list[dict[str, object]]:
    """Every account's figures since the start; delays in microseconds, from the end to the last block's return."""
    return [
        {
            "tenant": account.tenant,
            "class": account.traffic_class,
            "accepted": each.accepted,
            "ended": {end.label: count for end, count in each.ended.items() if count},
            "refused": {code.value: count for code, count in each.refused.items()},
            "used": asdict(each.used),
            "reclaims": each.reclaims,
            "reclaim_us_mean": each.reclaim_us_sum / max(each.reclaims, 1),
            "reclaim_us_max": each.reclaim_us_max,
        }
        for account, each in books.accounts.traffic.items()
    ]


def tenants(books: Books) -> dict[str, dict[str, object]]:
    """What each tenant has under way; tokens left in its bucket as last looked at."""
    return {
        each.rule.name: {
            "streams": each.streams,
            "tokens": None if each.bucket is None else round(each.bucket.level(0)),
            "expected_output": each.expected(1 << 30),
        }
        for each in books.tenants
    }
