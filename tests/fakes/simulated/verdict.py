"""What must be true in the end: of every request that was accepted, and of everything that people were given."""

from collections import Counter
from collections.abc import Mapping, Sequence

from fakes.simulated import oracle
from fakes.simulated.people import Person, Wish

from noria.proto.base import End, Stream
from noria.services.admission.core.events import AcceptedNote, EndedNote


class Violation(AssertionError):  # noqa: N818  # a state of affairs
    """Something that must hold does not."""


def judge(
    people: Sequence[Person],
    accepted: Mapping[int, AcceptedNote],
    ended: Mapping[Stream, EndedNote],
    counts: Counter[str],
) -> None:
    """Raise Violation unless every accepted stream has its one end and everybody got what was right."""
    for note in accepted.values():
        for choice in range(note.choices):
            if Stream(note.number, choice) not in ended:
                raise Violation(f"{note.id}: choice {choice} was accepted and never ended")
    # A repetition that arrives after the end was acknowledged is a new request; nobody reads it, so it is cancelled.
    counts["accepted again"] += len(accepted) - len({note.id for note in accepted.values()})
    for wish in [wish for person in people for wish in person.wishes]:
        if wish.refused is not None:
            if wish.request.ttl_ms is None and wish.request.ttl_first_ms is None:
                raise Violation(f"{wish.request.id} was refused: {wish.refused}")
            counts["refused"] += 1
        elif not wish.left:
            for index in range(wish.request.n):
                counts[f"end: {wish.reads[index].end}"] += 1
                _judge_choice(wish, index, counts["errors injected"])


def _judge_choice(wish: Wish, index: int, errors: int) -> None:
    read, right = wish.reads[index], oracle.answer(wish.request, index)
    name = f"{wish.request.id} choice {index}"
    if read.end in (End.STOP.label, End.LENGTH.label):
        got = (tuple(read.ids), read.text, read.end, read.matched)
        if got != (right.ids, right.text, right.end.label, right.matched):
            raise Violation(f"{name} got {got}, alone it gets {right}")
    else:
        if right.ids[: len(read.ids)] != tuple(read.ids):
            raise Violation(f"{name} got {read.ids} before its end, alone it gets {right.ids}")
        if not oracle.prefix_text(wish.request, tuple(read.ids)).startswith(read.text):
            raise Violation(f"{name} got {read.text!r} of ids {read.ids}")
        _judge_early_end(wish, name, read.end, errors)
    if read.output_tokens != len(read.ids):
        raise Violation(f"{name}: {read.output_tokens} tokens are charged, {len(read.ids)} were sent")


def _judge_early_end(wish: Wish, name: str, end: str, errors: int) -> None:
    timed = wish.request.ttl_ms is not None or wish.request.ttl_first_ms is not None
    # Two failed steps without a token between condemn a request, as long as suspects are not told apart.
    allowed = {End.CANCELLED.label: wish.cancelled, End.DEADLINE.label: timed, End.ERROR.label: errors >= 2}
    if not allowed.get(end, False):
        raise Violation(f"{name} ended as {end!r} for no reason")
