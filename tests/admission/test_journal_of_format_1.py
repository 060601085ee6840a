"""A journal that version 0.1.0 wrote before it was killed is read, and what it holds goes on. See the folder's README."""

import shutil
from pathlib import Path
from typing import Final

import pytest
from fakes.admission_bench import FIRST_NUMBER, Bench, policy, rules, tenant

from noria.proto.base import End, Stream
from noria.proto.output import Open
from noria.services.admission.core.admission import Admission
from noria.services.admission.core.journaling import JournalContents
from noria.services.admission.core.ledger.request import Request
from noria.services.admission.storage.database import AdmissionDatabase
from noria.services.admission.storage.journal import SCHEMA, Journal
from noria.services.admission.storage.journal_records import WallClockOffset
from noria.services.admission.storage.usage_writer import TABLES

WRITTEN: Final = Path(__file__).parents[1] / "fixtures" / "journal_format_1"
# The time of its last page by the wall's clock: a reader comes 2 s later, when its own clock stands at 1,000 s.
LAST_UNIX_NS: Final = 1_796_094_837_049_661_375
NOW_NS: Final = 1_000_000_000_000
CLOCK: Final = WallClockOffset(LAST_UNIX_NS + 2_000_000_000 - NOW_NS)
FIRST: Final = 1_796_094_832_338_881
# By request, without the part of their names that is drawn anew for each: the ids that each choice had emitted.
EMITTED: Final[dict[str, list[list[int]]]] = {
    "cmpl-858cb5ba0205664b0972525784c8425d": [[230, 256, 13, 226]],  # it had ended
    "cmpl-5b3f2baa7dfef568fc71eb0cf0eec93e": [[210, 244, 190, 160, 253, 253]],
    "cmpl-cef061c9a44e2a549589940fd84f8ff2": [[65, 46, 134, 145]],
    "cmpl-793aa237ef790e323f3bc244c46736db": [[68, 32, 163, 244], [131, 90, 64, 42]],
    "stream-stop": [[184, 12, 6, 93]],
    "stream-logprobs": [[12, 113, 12, 10]],
    "stream-waiting": [[]],
    "cmpl-d8006cee5fdd501d53a4b0f9438d1d2f": [[20, 13, 74, 122]],
    "cmpl-3e7d0c3a901c84ace818de8e3222bf18": [[], [], []],
}


@pytest.fixture
def database(tmp_path: Path) -> AdmissionDatabase:
    """The files as they were found, in a folder where they may be written."""
    for each in WRITTEN.glob("noria.sqlite*"):
        shutil.copy(each, tmp_path)
    return AdmissionDatabase(tmp_path / "noria.sqlite", (*TABLES, *SCHEMA))


@pytest.fixture
def recovered(database: AdmissionDatabase) -> JournalContents:
    return Journal(database).read(NOW_NS, CLOCK)


def named(recovered: JournalContents) -> dict[str, Request]:
    return {request.key.id.partition("~")[0]: request for request in recovered.requests}


def test_every_request_is_there_with_what_it_had_emitted(recovered: JournalContents) -> None:
    requests = named(recovered)
    assert {name: [list(choice.ids) for choice in request.choices] for name, request in requests.items()} == EMITTED
    assert [request.number - FIRST for request in recovered.requests] == list(range(9))
    ends = {name: [choice.end for choice in request.choices] for name, request in requests.items()}
    assert ends.pop("cmpl-858cb5ba0205664b0972525784c8425d") == [End.LENGTH]
    assert all(end is None for each in ends.values() for end in each)
    for request in requests.values():
        for choice in request.choices:
            assert choice.text.length <= 4 * len(choice.ids)
            assert len(choice.logprobs) == (0 if request.sampling.logprobs is None else len(choice.ids))
            assert bool(choice.first_token_ns) is bool(choice.ids)


def test_what_was_asked_for_is_as_it_was(recovered: JournalContents) -> None:
    requests = named(recovered)
    sampled = requests["cmpl-cef061c9a44e2a549589940fd84f8ff2"]
    assert (sampled.key.tenant, sampled.background, sampled.keep, sampled.prompt_tokens) == ("beta", True, True, 33)
    assert list(sampled.prompt) == [2 + (2 * 31 + each * 7) % 250 for each in range(33)]
    sampling = sampled.choices[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.9, 0.95, 40, 0.01)
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (0.2, 0.1, 1.05)
    assert (sampling.seed, sampling.logit_bias, sampling.max_tokens) == (7, ((65, 1.5),), 1500)
    stopped = requests["stream-stop"]
    assert (stopped.key.tenant, stopped.background, stopped.model) == ("beta", False, "tiny")
    assert stopped.choices[0].sampling.stop == ("never in this text", "☃☃")
    probable = requests["stream-logprobs"].choices[0]
    assert probable.sampling.stop_token_ids == (250, 251)
    assert all(len(each.top) == 2 and each.logprob < 0 for each in probable.logprobs)
    several = requests["cmpl-793aa237ef790e323f3bc244c46736db"]
    assert several.n == 2
    assert len({choice.sampling.seed for choice in several.choices}) == 2, "each choice draws for itself"
    assert recovered.asleep_ns == 2_000_000_000
    assert [tuple(each) for each in recovered.class_totals] == [("beta", "standard"), ("acme", "standard")]
    assert recovered.levels["acme"][0] == pytest.approx(994_154.46, abs=0.01)


def test_what_was_used_is_still_counted(database: AdmissionDatabase) -> None:
    assert database.read("SELECT tenant, class, requests, prompt_tokens, output_tokens FROM usage") == [
        ("beta", "standard", 1, 5, 4)
    ]


def test_every_unfinished_stream_goes_on_where_it_was(recovered: JournalContents) -> None:
    served = rules(models=("tiny",), vocabulary=258, context_tokens=2048, eos_ids=(1,))
    core = Admission(served, FIRST_NUMBER, policy(tenant("acme"), tenant("beta")))
    core.recover(recovered, NOW_NS)
    core.check()
    bench = Bench(ready=False)
    bench.core, bench.now_ns = core, NOW_NS
    bench.ready()
    unfinished = {
        Stream(FIRST + number, index): tuple(ids)
        for number, choices in enumerate(EMITTED.values())
        for index, ids in enumerate(choices)
        if number
    }
    assert {each.stream: each.output_ids for each in bench.submissions()} == unfinished
    opened = [each for message in bench.turn.detokenizer if isinstance(message, Open) for each in message.openings]
    assert {each.stream: each.output_ids for each in opened} == unfinished
