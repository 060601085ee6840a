"""The report of `make chaos` counts what was lost and measures what was held up."""

import json

from chaos.figures import report
from chaos.killer import Hit
from chaos.plan import SERVICES, Blow, blows, questions
from chaos.readers import Answer, Crowd


def answer(began_s: float, arrivals_s: list[float], **fields: object) -> Answer:
    made = Answer("zeromq", 0, began_s, arrivals_s[-1], arrivals_s)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def test_a_recovery_lasts_from_the_death_to_the_next_token_that_was_not_on_its_way() -> None:
    held_up = answer(1.0, [9.9, 10.02, 11.5, 11.6])
    over = answer(1.0, [5.0])
    later = answer(10.5, [10.6])
    found = report(1, 3, [held_up, over, later], [Hit(Blow("kill", ("scheduler",), 1.0), 10.0)], 0, "")
    recovery = found.recoveries["scheduler"]
    assert (recovery.hits, recovery.streams) == (1, 1)
    assert round(recovery.max_s, 3) == 1.5
    assert round(found.longest_pause_s, 1) == 8.9


def test_an_executors_recovery_is_told_without_the_load_of_the_model_too() -> None:
    def event(name: str, at: str, **fields: str) -> str:
        return json.dumps({"event": name, "timestamp": f"1970-01-01T00:00:{at}Z", **fields})

    log = "\n".join(
        [
            event("service spawned", "10.5", child="executor"),
            "not json",
            event("model loaded", "13.5", service="executor"),
        ]
    )
    hits = [Hit(Blow("kill", ("executor",), 1.0), 10.0)]
    recovery = report(1, 1, [answer(1.0, [14.0])], hits, 0, log).recoveries["executor"]
    assert (recovery.p50_s, recovery.p50_without_load_s) == (4.0, 1.0)


def test_an_answer_with_other_tokens_or_without_an_end_is_lost() -> None:
    crowd = Crowd("", "", questions(1, 1, (2, 2)), {0: ((1, 2), "ab")})
    right = answer(0.0, [1.0], ids=[1, 2], text="ab")
    wrong = answer(0.0, [1.0], ids=[1, 3], text="ac")
    short = answer(0.0, [1.0], ids=[1], text="a")
    for each in (right, wrong, short):
        crowd.judge(each)
    found = report(1, 1, [right, wrong, short], [], 0, "")
    assert found.lost == 2
    assert "from 1 on" in found.table()


def test_blows_follow_from_the_seed_and_hit_everybody_in_every_way() -> None:
    drawn = list(blows(1, 200, (1.0, 2.0), SERVICES, alone=False))
    assert drawn == list(blows(1, 200, (1.0, 2.0), SERVICES, alone=False))
    assert {blow.kind for blow in drawn} == {"kill", "hang", "supervisor", "all"}
    assert {name for blow in drawn for name in blow.victims} == set(SERVICES)
    assert any(len(blow.victims) == 2 for blow in drawn)
    assert all(1.0 <= blow.after_s <= 2.0 for blow in drawn)
    turns = [blow.victims for blow in blows(1, 4, (1.0, 2.0), ("a", "b"), alone=True)]
    assert turns == [("a",), ("b",), ("a",), ("b",)]
