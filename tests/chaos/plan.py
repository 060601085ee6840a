"""What is asked for again and again while processes are killed, and what is killed when: all of it from one seed."""

import random
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

SERVICES = ("gateway", "admission", "scheduler", "executor", "detokenizer")


@dataclass(frozen=True)
class Question:
    """A prompt, and how many tokens of answer it wants."""

    prompt: str
    tokens: int


@dataclass(frozen=True)
class Blow:
    """What is done to the stack next: who is hit and how, so long after the blow before.

    kind: kill, hang (SIGSTOP), supervisor (killed, and started again), or all (everything killed, and started again).
    alone: nothing more is done until the stack is ready again. midway: it waits for answers to be under way, and the
    victims stand still until then, so that it hits some for certain.
    """

    kind: str
    victims: tuple[str, ...]
    after_s: float
    alone: bool = False
    midway: bool = False

    @property
    def name(self) -> str:
        """Under which it is counted in the report."""
        match self.kind:
            case "kill" if len(self.victims) == 1:
                return self.victims[0]
            case "kill":
                return "two at once"
            case "hang":
                return f"{self.victims[0]} (hangs)"
            case _:
                return self.kind


def questions(seed: int, count: int, tokens: tuple[int, int]) -> list[Question]:
    """Prompts of ten to six hundred letters, short ones more often."""
    chance = random.Random(seed)
    letters = string.ascii_letters + " " * 10
    return [
        Question(
            "".join(chance.choices(letters, k=int(10 * 60 ** chance.random()))),
            chance.randint(*tokens),
        )
        for _ in range(count)
    ]


def blows(seed: int, count: int, gap_s: tuple[float, float], victims: Sequence[str], *, alone: bool) -> Iterator[Blow]:
    """So many of them. alone: one service after the other, killed in turn and nothing else."""
    chance = random.Random(seed)
    for number in range(count):
        after_s = chance.uniform(*gap_s)
        if alone:
            yield Blow("kill", (victims[number % len(victims)],), after_s, alone=True)
            continue
        kind = chance.choices(("kill", "two", "hang", "supervisor", "all"), (70, 10, 8, 7, 5))[0]
        if kind == "two" and len(victims) > 1:
            yield Blow("kill", tuple(chance.sample(victims, 2)), after_s)
        elif kind in ("supervisor", "all"):
            yield Blow(kind, (), after_s)
        else:
            yield Blow("hang" if kind == "hang" else "kill", (chance.choice(victims),), after_s)
