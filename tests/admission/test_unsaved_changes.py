"""Changes whose journal page could not be written are tried again."""

from noria.proto.base import Stream
from noria.proto.sampling import Sampling
from noria.services.admission.core.ledger.request import ChoiceRecord, Request, RequestKey
from noria.services.admission.core.ledger.unsaved_changes import UnsavedChanges

_SECOND = 1_000_000_000


def test_a_record_that_is_stuck_is_tried_again_though_nothing_is_left_to_write() -> None:
    unsaved = UnsavedChanges()
    unsaved.on = True
    request = Request(1, RequestKey("a", "r1"), "client", b"", "model", Sampling(), 1, 7, "", "standard", 0)
    request.choices = [ChoiceRecord(Stream(1, 0), Sampling())]
    unsaved.accepted(request)
    assert unsaved.next_page(_SECOND, live=True) is not None
    assert unsaved.page_failed(_SECOND) == (request,)
    unsaved.forgotten(request)
    next_wakeup_ns = unsaved.next_wakeup_ns(live=False)
    assert next_wakeup_ns is not None and next_wakeup_ns > _SECOND
    page = unsaved.next_page(next_wakeup_ns, live=False)
    assert page is not None and not page.accepted
    unsaved.page_written(page)
    assert not unsaved.stuck
    assert unsaved.next_page(2 * next_wakeup_ns, live=False) is None
