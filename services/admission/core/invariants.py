"""Checks that hold in the state of admission after every event."""

from noria.services.admission.core.state.admission_state import AdmissionState


def check(state: AdmissionState) -> None:
    """Assert the invariants of every part of the state, and those between parts."""
    state.ledger.check()
    state.delivery.check()
    state.credit.check()
    state.unsaved.check(each for each in state.ledger.requests.values() if each.choices)
    in_flight = dict.fromkeys(state.usage_counters.class_totals, 0)
    for request in state.ledger.live.values():
        in_flight[state.usage_counters.of(request)] += request.unfinished
    for usage_key, class_totals in state.usage_counters.class_totals.items():
        class_totals.check(in_flight[usage_key])
    tokenizing = state.ledger.tokenizing
    assert state.credit.reserved == sum(each.reserved_streams for each in tokenizing.values())
    _check_policy(state)
    state.tokenizer.check(tokenizing)
    for number in (*state.ledger.live, *tokenizing):
        assert number in tokenizing or not state.ledger.live[number].preview
        kept = (number in state.orphans) + (number in state.unread)
        assert (number in state.delivery.attachments) + kept == 1
    assert state.orphans.keys() | state.unread.keys() <= state.ledger.live.keys() | tokenizing.keys()
    assert state.credit.queued == len(state.scheduler.submissions)
    for stream in (*state.scheduler.submissions, *state.detokenizer.openings, *state.detokenizer.gaps):
        assert state.ledger.choice(stream) is not None
    for stream in (*state.scheduler.ended, *state.scheduler.withdrawals, *state.detokenizer.ended):
        assert state.ledger.choice(stream) is None
    assert state.scheduler.withdrawals.keys() <= state.scheduler.ended.keys()


def _check_policy(state: AdmissionState) -> None:
    state.waiting.check()
    state.tenants.check()
    held = {each.rule.name: each.streams for each in state.tenants}
    for request in state.ledger.live.values():
        held[request.key.tenant] -= request.unfinished
        waits = all(choice.first_token_ns is None for choice in request.choices)
        assert (request.number in state.waiting.of(request.traffic_class).requests) is waits
    for request in state.ledger.tokenizing.values():
        held[request.key.tenant] -= request.reserved_streams
    assert not any(held.values()), held
