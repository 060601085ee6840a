"""The plan of a chaos run, drawn from one seed: the prompts that are sent, and the kills with their times."""

import random
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

SERVICES = ("gateway", "admission", "scheduler", "executor", "detokenizer")


@dataclass(frozen=True)
class PromptTask:
    """A prompt, and the number of tokens of its answer."""

    prompt: str
    tokens: int


@dataclass(frozen=True)
class KillAction:
    """One kill: its kind, its victims, and its delay after the kill before it.

    kind: kill, hang (SIGSTOP), supervisor (killed, and started again), or all (everything killed, and started again).
    alone: the next kill waits until the stack is ready again. mid_answer: the kill waits until answers are under way; the
    victims are stopped meanwhile, so that it certainly hits some.
    """

    kind: str
    victims: tuple[str, ...]
    after_s: float
    alone: bool = False
    mid_answer: bool = False

    @property
    def name(self) -> str:
        """The name under which the report counts this kill."""
        match self.kind:
            case "kill" if len(self.victims) == 1:
                return self.victims[0]
            case "kill":
                return "two at once"
            case "hang":
                return f"{self.victims[0]} (hangs)"
            case _:
                return self.kind


def draw_prompts(seed: int, count: int, tokens: tuple[int, int]) -> list[PromptTask]:
    """Draw prompts of ten to six hundred letters, short ones more often."""
    rng = random.Random(seed)
    letters = string.ascii_letters + " " * 10
    return [
        PromptTask(
            "".join(rng.choices(letters, k=int(10 * 60 ** rng.random()))),
            rng.randint(*tokens),
        )
        for _ in range(count)
    ]


def draw_kills(
    seed: int, count: int, gap_s: tuple[float, float], victims: Sequence[str], *, alone: bool
) -> Iterator[KillAction]:
    """Draw so many kills. alone: single services only, killed in turn."""
    rng = random.Random(seed)
    for number in range(count):
        after_s = rng.uniform(*gap_s)
        if alone:
            yield KillAction("kill", (victims[number % len(victims)],), after_s, alone=True)
            continue
        kind = rng.choices(("kill", "two", "hang", "supervisor", "all"), (70, 10, 8, 7, 5))[0]
        if kind == "two" and len(victims) > 1:
            yield KillAction("kill", tuple(rng.sample(victims, 2)), after_s)
        elif kind in ("supervisor", "all"):
            yield KillAction(kind, (), after_s)
        else:
            yield KillAction("hang" if kind == "hang" else "kill", (rng.choice(victims),), after_s)
