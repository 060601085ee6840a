"""The report of `make chaos` counts what was lost and measures what was held up."""

import json

from chaos.chaos_report import make_report
from chaos.kill_plan import SERVICES, KillAction, draw_kills, draw_prompts
from chaos.killer import PerformedKill
from chaos.readers import ChaosAnswer, StreamReaders


def answer(began_s: float, arrivals_s: list[float], **fields: object) -> ChaosAnswer:
    made = ChaosAnswer("zeromq", 0, began_s, arrivals_s[-1], arrivals_s)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def test_a_recovery_lasts_from_the_death_to_the_next_token_that_was_not_on_its_way() -> None:
    held_up = answer(1.0, [9.9, 10.02, 11.5, 11.6])
    over = answer(1.0, [5.0])
    later = answer(10.5, [10.6])
    found = make_report(
        1, 3, [held_up, over, later], [PerformedKill(KillAction("kill", ("scheduler",), 1.0), 10.0)], 0, ""
    )
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
    hits = [PerformedKill(KillAction("kill", ("executor",), 1.0), 10.0)]
    recovery = make_report(1, 1, [answer(1.0, [14.0])], hits, 0, log).recoveries["executor"]
    assert (recovery.p50_s, recovery.p50_without_load_s) == (4.0, 1.0)


def test_an_answer_with_other_tokens_or_without_an_end_is_lost() -> None:
    readers = StreamReaders("", "", draw_prompts(1, 1, (2, 2)), {0: ((1, 2), "ab")})
    right = answer(0.0, [1.0], ids=[1, 2], text="ab")
    wrong = answer(0.0, [1.0], ids=[1, 3], text="ac")
    short = answer(0.0, [1.0], ids=[1], text="a")
    for each in (right, wrong, short):
        readers.check(each)
    found = make_report(1, 1, [right, wrong, short], [], 0, "")
    assert found.lost == 2
    assert "from 1 on" in found.table()


def test_blows_follow_from_the_seed_and_hit_everybody_in_every_way() -> None:
    drawn = list(draw_kills(1, 200, (1.0, 2.0), SERVICES, alone=False))
    assert drawn == list(draw_kills(1, 200, (1.0, 2.0), SERVICES, alone=False))
    assert {kill.kind for kill in drawn} == {"kill", "hang", "supervisor", "all"}
    assert {name for kill in drawn for name in kill.victims} == set(SERVICES)
    assert any(len(kill.victims) == 2 for kill in drawn)
    assert all(1.0 <= kill.after_s <= 2.0 for kill in drawn)
    turns = [kill.victims for kill in draw_kills(1, 4, (1.0, 2.0), ("a", "b"), alone=True)]
    assert turns == [("a",), ("b",), ("a",), ("b",)]
