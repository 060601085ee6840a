"""All clients of a run: who comes, who leaves for good, and who dies and is succeeded."""

from collections import Counter
from collections.abc import Callable
from random import Random

from fakes.simulated import stack
from fakes.simulated.chance import Chance
from fakes.simulated.clock import MILLISECOND, Agenda, Clock
from fakes.simulated.fate import STILL_AFTER_NS, Fate
from fakes.simulated.network import Network
from fakes.simulated.people import Person
from fakes.simulated.traffic import Traffic
from fakes.simulated.wishes import Wish, draw_wishes


class Audience:
    """`people` are there once they have been invited."""

    def __init__(
        self,
        draw: Random,
        chance: Chance,
        traffic: Traffic,
        network: Network,
        agenda: Agenda,
        clock: Clock,
        fate: Fate,
        tell: Callable[[str, str], None],
        counts: Counter[str],
    ) -> None:
        self.people: list[Person] = []
        self._random = draw
        self._chance = chance
        self._traffic = traffic
        self._network = network
        self._agenda = agenda
        self._clock = clock
        self._fate = fate
        self._tell = tell
        self._counts = counts

    @property
    def wishes(self) -> list[Wish]:
        """All requests of all people."""
        return [wish for person in self.people for wish in person.wishes]

    def invite(self) -> None:
        """Draw who there is, what everyone wishes, and who goes when."""
        requests = []
        for number in range(self._chance.people):
            wishes = draw_wishes(self._random, self._chance, self._traffic, str(number), self._clock.now_ns, requests)
            requests += [wish.request for wish in wishes]
            self.people.append(Person(str(number), stack.DOOR, self._network, self._agenda, self._clock, wishes))
        if len(self.people) > 1 and self._random.random() < 0.2:
            self._agenda.after(self._random.randint(0, STILL_AFTER_NS), self._leave)
        for number in range(self._chance.rebirths):
            self._agenda.after(self._random.randint(0, STILL_AFTER_NS), lambda number=number: self._succeed(number))  # type: ignore[misc]  # a default binds it

    def _succeed(self, number: int) -> None:
        """A client's process dies; the next one comes soon enough to be waited for, under a name of its own or the same."""
        if self._fate.still:
            return
        person = self._random.choice(self.people)
        if person.alive:
            self._counts["death of client"] += 1
            self._tell(person.name, "dies")
            name = person.name.removeprefix("client-")
            name = self._random.choice([name, f"{name}+{number}"])
            person.die(self._chance.between(0, 800 * MILLISECOND), name)

    def _leave(self) -> None:
        person = self.people[-1]
        self._tell(person.name, "is gone")
        person.leave()
