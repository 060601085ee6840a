"""What people ask for, and what they have been given."""

import random
from dataclasses import dataclass, field

import msgspec
from fakes.simulated.chance import Chance
from fakes.simulated.oracle import STOPS, TEXTS
from fakes.simulated.traffic import Traffic

from noria.client.call import Call
from noria.client.errors import Refused
from noria.client.results import Logprobs
from noria.proto.frontdoor import Generate
from noria.proto.sampling import Sampling


@dataclass(slots=True, eq=False)
class Read:
    """What a reader has been given of one choice."""

    ids: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[Logprobs] = field(default_factory=list)
    end: str = ""
    matched: str = ""
    output_tokens: int = -1
    attempt: int = 0


@dataclass(slots=True, eq=False)
class Wish:
    """One request of one person, what may come of it, and what did.

    cancel_after: it is cancelled once so many ids have been read. abandoning: nobody reads on then. left: its person has
    gone, or does not read it any more. refused: for good. begun_ns: when it was asked for under its present name.
    """

    request: Generate
    at_ns: int
    cancel_after: int | None = None
    abandoning: bool = False
    begun_ns: int = 0
    call: Call | None = None
    reads: list[Read] = field(default_factory=list)
    cancelled: bool = False
    left: bool = False
    refused: Refused | None = None
    tries: int = 0

    @property
    def over(self) -> bool:
        """Whether nothing more will come of it."""
        ended = bool(self.reads) and all(read.end for read in self.reads)
        return ended or self.left or self.refused is not None


def draw_wishes(
    draw: random.Random, chance: Chance, traffic: Traffic, name: str, start_ns: int, earlier: list[Generate]
) -> list[Wish]:
    """What one person asks for; `earlier`: what others asked for, which grows."""
    wishes = []
    for number in range(draw.randint(1, chance.wishes_max)):
        request = draw_request(draw, chance, traffic, f"{name}-{number}", earlier)
        earlier.append(request)
        wish = Wish(request, start_ns + draw.randint(0, chance.arrivals_ns), draw.choice([None] * 8 + [0, 1, 4]))
        wish.abandoning = draw.random() < 0.3
        wishes.append(wish)
    return wishes


def draw_request(draw: random.Random, chance: Chance, traffic: Traffic, name: str, earlier: list[Generate]) -> Generate:
    """A small request; prompts share beginnings, some ask for the same again."""
    credential, traffic_class = traffic.draw_sender(draw)
    if earlier and draw.random() < 0.2:
        again = draw.choice(earlier)
        return msgspec.structs.replace(again, id=name, credential=credential, traffic_class=traffic_class)
    request = Generate(
        name,
        sampling=_draw_sampling(draw, chance),
        n=draw.choice([1, 1, 1, 1, 2, 3]),
        credential=credential,
        traffic_class=traffic_class,
        ttl_ms=draw.choice([5, 60, 400]) if chance.happens(chance.deadlines) else None,
        ttl_first_ms=draw.choice([5, 60]) if chance.happens(chance.deadlines) else None,
        keep=draw.random() < 0.1,
        background=draw.random() < 0.1,
        grace_ms=draw.choice([None, None, None, 3_000]),
    )
    if draw.random() < 0.3:
        prompt = "".join(draw.choice(TEXTS) for _ in range(draw.randint(1, 3)))
        return msgspec.structs.replace(request, prompt=prompt)
    ids = tuple(each % 31 + 1 for each in range(draw.choice([0, 4, 8]), 12))[: draw.choice([4, 8, 12])]
    ids += tuple(draw.randrange(1, 32) for _ in range(draw.randint(1, 4)))
    return msgspec.structs.replace(request, token_ids=ids)


def _draw_sampling(draw: random.Random, chance: Chance) -> Sampling:
    most = 14
    maximum = draw.randint(most // 2, most) if chance.long else draw.randint(1, most)
    penalised = draw.random() < 0.3
    return Sampling(
        seed=draw.randrange(1 << 40),
        max_tokens=maximum,
        min_tokens=draw.choice([0, 0, min(3, maximum)]),
        stop=tuple(draw.sample(STOPS, draw.randint(1, 2))) if draw.random() < 0.4 else (),
        stop_token_ids=(draw.choice([7, 9, 20]),) if draw.random() < 0.2 else (),
        ignore_eos=draw.random() < 0.2,
        include_stop=draw.random() < 0.2,
        presence_penalty=draw.choice([0.0, 0.5]) if penalised else 0.0,
        frequency_penalty=draw.choice([0.0, 1.5]) if penalised else 0.0,
        repetition_penalty=draw.choice([1.0, 1.25]) if penalised else 1.0,
        logit_bias=((draw.randrange(1, 32), 2.0),) if draw.random() < 0.1 else (),
        logprobs=draw.choice([0, 1, 3]) if draw.random() < 0.25 else None,
    )
