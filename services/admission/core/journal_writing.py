"""What of the books is put on record: pages with the counts that have changed, and what follows once they are taken."""

from dataclasses import replace

from noria.proto.scheduling import Accounted
from noria.services.admission.core.ledger.unsaved_changes import Page
from noria.services.admission.core.ledger.usage_counters import Told
from noria.services.admission.core.state.admission_state import Books


def page(books: Books, now_ns: int) -> Page | None:
    """What is to be put on record now, with the counts that have changed."""
    accounts = books.accounts
    found = books.record.page(now_ns, live=bool(books.ledger.live), counted=bool(accounts.unrecorded))
    if found is None:
        return None
    levels = books.tenants.levels(now_ns)
    if not found.fold:
        return replace(found, counted=tuple(accounts.unrecorded.items()), levels=levels)
    changed = [each for each in accounts.traffic if each in accounts.moved or each in accounts.unrecorded]
    return replace(found, traffic=tuple((each, accounts.traffic[each]) for each in changed), levels=levels)


def written(books: Books, taken: Page) -> None:
    """A page is on record."""
    books.record.written(taken)
    books.accounts.written(fold=taken.fold)
    books.tenants.recorded()


def accounted(books: Books, told: Told) -> None:
    """The scheduler's costs are written down up to there: it hears of it when it has told any since it last did."""
    accounts = books.accounts
    if accounts.owes_answer and accounts.told == told and books.scheduler.joined:
        accounts.owes_answer = False
        books.scheduler.accounted = Accounted(*told)
