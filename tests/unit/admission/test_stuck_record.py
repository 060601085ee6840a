"""A record whose page was not taken."""

from noria.proto.base import Stream
from noria.proto.sampling import Sampling
from noria.services.admission.core.ledger.request import ChoiceState, Request, RequestKey
from noria.services.admission.core.ledger.unsaved_changes import UnsavedChanges

_SECOND = 1_000_000_000


def test_a_record_that_is_stuck_is_tried_again_though_nothing_is_left_to_write() -> None:
    record = UnsavedChanges()
    record.on = True
    request = Request(1, RequestKey("a", "r1"), "client", b"", "model", Sampling(), 1, 7, "", "standard", 0)
    request.choices = [ChoiceState(Stream(1, 0), Sampling())]
    record.accepted(request)
    assert record.page(_SECOND, live=True) is not None
    assert record.unwritten(_SECOND) == (request,)
    record.forgotten(request)
    wanted_ns = record.wanted_ns(live=False)
    assert wanted_ns is not None and wanted_ns > _SECOND
    page = record.page(wanted_ns, live=False)
    assert page is not None and not page.accepted
    record.written(page)
    assert not record.stuck
    assert record.page(2 * wanted_ns, live=False) is None
