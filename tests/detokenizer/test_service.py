"""The detokenizer's shell over real sockets, with admission and the scheduler played by bare peers."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fakes.peers import BarePeer, runtime, wait_for
from fakes.vocabularies import byte_level
from msgspec.structs import replace

from noria.proto.base import End, Ended, Service, Stream
from noria.proto.output import Gap, Open, Opening, Progress, Resend, TextRun, Texts, TokenRun, Tokens, Unknown
from noria.services.detokenizer.service import DetokenizerService, vocabulary_of
from noria.shared.actor.actor import Actor
from noria.shared.actor.endpoints import mailbox, prepare_runtime_dir
from noria.shared.actor.inspect import inspect
from noria.shared.actor.mailbox import Mailbox
from noria.shared.config.config import RuntimeSettings, TelemetrySettings
from noria.shared.telemetry.telemetry import Telemetry

ME, PEERS = Service.DETOKENIZER, (Service.SCHEDULER, Service.ADMISSION)
S = Stream(1, 0)
IDS = tuple(byte_level().encode("hello 😀 world", add_special_tokens=False))


class Stand:
    """A running detokenizer and its two neighbours."""

    def __init__(self, settings: RuntimeSettings) -> None:
        self.settings = settings
        prepare_runtime_dir(settings)
        post = Mailbox(ME, mailbox(settings, ME), {peer: mailbox(settings, peer) for peer in PEERS}, settings)
        self.incarnation = post.incarnation
        self.actor = Actor(post, settings)
        telemetry = Telemetry(ME, post.incarnation, TelemetrySettings())
        shell = DetokenizerService(self.actor, telemetry, vocabulary_of(byte_level()))
        self.scheduler, self.admission = (BarePeer(settings, peer, ME) for peer in PEERS)
        self.scheduler.bind()
        self.admission.bind()
        self.thread = threading.Thread(target=self.actor.run, args=(shell,), daemon=True)
        self.thread.start()
        for peer in (self.scheduler, self.admission):
            peer.hello()
            peer.read()
        wait_for(lambda: all(link.joined for link in post.links.values()))

    def tell(self, peer: BarePeer, body: msgspec.Struct) -> None:
        peer.send(body, self.incarnation)

    def state(self) -> dict[str, Any]:
        snapshot = inspect(self.settings, ME, 60)
        assert snapshot is not None
        content = msgspec.json.decode(snapshot.json)
        assert isinstance(content, dict)
        return content

    def texts(self, until: int) -> list[TextRun]:
        """Text runs up to so many ids, over however many turns they came."""
        runs: list[TextRun] = []
        while sum(len(run.ids) for run in runs) < until:
            _, body = self.admission.read_until(Texts)
            assert isinstance(body, Texts)
            runs += body.runs
        return runs

    def close(self) -> None:
        self.actor.stop()
        self.thread.join(60)
        self.scheduler.close()
        self.admission.close()


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Stand]:
    running = Stand(runtime(tmp_path))
    yield running
    running.close()


def test_tokens_become_texts_and_an_ended_stream_is_forgotten(stand: Stand) -> None:
    stand.tell(stand.admission, Open((Opening(S, 0, (), stop=("zz",)),)))
    wait_for(lambda: stand.state()["streams"] == 1)
    for position, token in enumerate(IDS):
        end = End.LENGTH if position == len(IDS) - 1 else 0
        stand.tell(stand.scheduler, Tokens((TokenRun(S, 0, position, (token,), end),)))
    runs = stand.texts(len(IDS))
    assert "".join(run.text for run in runs) == "hello 😀 world"
    assert [run.end for run in runs] == [0] * (len(runs) - 1) + [End.LENGTH]
    seen = 0
    while seen < len(IDS):
        _, body = stand.scheduler.read_until(Progress)
        assert isinstance(body, Progress)
        seen = body.seen[0].start
    stand.tell(stand.admission, Ended((S,)))
    wait_for(lambda: stand.state()["streams"] == 0)


def test_tokens_before_their_opening_are_reported_and_asked_for_afterwards(stand: Stand) -> None:
    stand.tell(stand.scheduler, Tokens((TokenRun(S, 0, 0, IDS),)))
    assert stand.admission.read_until(Unknown)[1] == Unknown((S,))
    stand.tell(stand.admission, Open((Opening(S, 0, ()),)))
    assert stand.scheduler.read_until(Resend)[1] == Resend((Gap(S, 0),))
    stand.tell(stand.scheduler, Tokens((TokenRun(S, 0, 0, IDS),)))
    assert stand.texts(len(IDS)) == [TextRun(S, 0, 0, IDS, 0, "hello 😀 world")]


def test_a_new_admission_gets_what_it_lacks_and_a_new_scheduler_is_asked(stand: Stand) -> None:
    stand.tell(stand.admission, Open((Opening(S, 0, ()),)))
    wait_for(lambda: stand.state()["streams"] == 1)
    stand.tell(stand.scheduler, Tokens((TokenRun(S, 0, 0, IDS[:3]),)))
    first = stand.texts(3)[0]
    stand.admission.incarnation += 2
    stand.admission.hello()
    stand.tell(stand.admission, Open((Opening(S, 0, (), output_ids=first.ids[:1], characters=0),)))
    again = stand.texts(2)[0]
    assert (again.start, again.ids, again.text) == (1, IDS[1:3], first.text)
    stand.scheduler.incarnation += 2
    stand.scheduler.hello()
    assert stand.scheduler.read_until(Resend)[1] == Resend((Gap(S, 3),))
    stand.tell(stand.admission, Resend((Gap(S, 0),)))
    assert replace(stand.texts(3)[0], cached_tokens=0) == first
