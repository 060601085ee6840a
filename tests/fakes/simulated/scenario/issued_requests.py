"""Requests that simulated clients issue, and what they have received of the answers."""

import random
from dataclasses import dataclass, field

import msgspec
from fakes.simulated.machine.fault_rates import FaultRates
from fakes.simulated.machine.oracle import STOPS, TEXTS
from fakes.simulated.scenario.tenancy import Tenancy

from noria.client.call import Call
from noria.client.errors import Refused
from noria.client.results import Logprobs
from noria.proto.frontdoor import Generate
from noria.proto.sampling import Sampling


@dataclass(slots=True, eq=False)
class ChoiceOutput:
    """What a client has received of one choice."""

    ids: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[Logprobs] = field(default_factory=list)
    end: str = ""
    matched: str = ""
    output_tokens: int = -1
    attempt: int = 0


@dataclass(slots=True, eq=False)
class IssuedRequest:
    """One request of a client, how the client treats it, and what came of it.

    cancel_after: the client cancels it after so many ids. abandons_when_cancelled: the client does not read on then.
    left: the client has left, or reads it no more. refused: for good. begun_ns: when it was sent under its present id.
    """

    request: Generate
    at_ns: int
    cancel_after: int | None = None
    abandons_when_cancelled: bool = False
    begun_ns: int = 0
    call: Call | None = None
    outputs: list[ChoiceOutput] = field(default_factory=list)
    cancelled: bool = False
    left: bool = False
    refused: Refused | None = None
    tries: int = 0

    @property
    def over(self) -> bool:
        """Whether nothing more will come of the request."""
        ended = bool(self.outputs) and all(output.end for output in self.outputs)
        return ended or self.left or self.refused is not None


def draw_issued_requests(
    draw: random.Random, rates: FaultRates, tenancy: Tenancy, name: str, start_ns: int, earlier: list[Generate]
) -> list[IssuedRequest]:
    """Draw the requests of one client. `earlier`: requests of other clients, to which these are added."""
    issued_requests = []
    for number in range(draw.randint(1, rates.wishes_max)):
        request = draw_request(draw, rates, tenancy, f"{name}-{number}", earlier)
        earlier.append(request)
        issued = IssuedRequest(
            request, start_ns + draw.randint(0, rates.arrivals_ns), draw.choice([None] * 8 + [0, 1, 4])
        )
        issued.abandons_when_cancelled = draw.random() < 0.3
        issued_requests.append(issued)
    return issued_requests


def draw_request(
    draw: random.Random, rates: FaultRates, tenancy: Tenancy, name: str, earlier: list[Generate]
) -> Generate:
    """Draw a small request; prompts share prefixes, and some repeat an earlier request."""
    credential, traffic_class = tenancy.draw_sender(draw)
    if earlier and draw.random() < 0.2:
        again = draw.choice(earlier)
        return msgspec.structs.replace(again, id=name, credential=credential, traffic_class=traffic_class)
    request = Generate(
        name,
        sampling=_draw_sampling(draw, rates),
        n=draw.choice([1, 1, 1, 1, 2, 3]),
        credential=credential,
        traffic_class=traffic_class,
        ttl_ms=draw.choice([5, 60, 400]) if rates.happens(rates.deadlines) else None,
        ttl_first_ms=draw.choice([5, 60]) if rates.happens(rates.deadlines) else None,
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


def _draw_sampling(draw: random.Random, rates: FaultRates) -> Sampling:
    most = 14
    maximum = draw.randint(most // 2, most) if rates.long else draw.randint(1, most)
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
