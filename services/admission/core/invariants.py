"""What must hold in admission's books after every event."""

from noria.services.admission.core.state.admission_state import AdmissionState


def check(books: AdmissionState) -> None:
    """Assert the invariants of all parts, and those between them."""
    books.ledger.check()
    books.delivery.check()
    books.credit.check()
    books.record.check(each for each in books.ledger.requests.values() if each.choices)
    in_flight = dict.fromkeys(books.accounts.traffic, 0)
    for request in books.ledger.live.values():
        in_flight[books.accounts.of(request)] += request.unfinished
    for account, traffic in books.accounts.traffic.items():
        traffic.check(in_flight[account])
    tokenizing = books.ledger.tokenizing
    assert books.credit.reserved == sum(each.claims for each in tokenizing.values())
    _check_policy(books)
    books.tokenizer.check(tokenizing)
    for number in (*books.ledger.live, *tokenizing):
        assert number in tokenizing or not books.ledger.live[number].preview
        kept = (number in books.orphans) + (number in books.unread)
        assert (number in books.delivery.attachments) + kept == 1
    assert books.orphans.keys() | books.unread.keys() <= books.ledger.live.keys() | tokenizing.keys()
    assert books.credit.queued == len(books.scheduler.submissions)
    for stream in (*books.scheduler.submissions, *books.detokenizer.openings, *books.detokenizer.gaps):
        assert books.ledger.choice(stream) is not None
    for stream in (*books.scheduler.ended, *books.scheduler.withdrawals, *books.detokenizer.ended):
        assert books.ledger.choice(stream) is None
    assert books.scheduler.withdrawals.keys() <= books.scheduler.ended.keys()


def _check_policy(books: AdmissionState) -> None:
    books.queues.check()
    books.tenants.check()
    held = {each.rule.name: each.streams for each in books.tenants}
    for request in books.ledger.live.values():
        held[request.key.tenant] -= request.unfinished
        waits = all(choice.first_token_ns is None for choice in request.choices)
        assert (request.number in books.queues.of(request.traffic_class).requests) is waits
    for request in books.ledger.tokenizing.values():
        held[request.key.tenant] -= request.claims
    assert not any(held.values()), held
