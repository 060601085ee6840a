"""Workloads: prompts with the length of their answers, from a file, from a trace, or made up.

When requests are sent, and to whom, is decided elsewhere. The same file, numbers and seed give the same requests.
"""

import datetime
import itertools
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from noria.shared.errors import UserError

_TRACE_BLOCK: Final = 512
# Common enough that nearly every vocabulary has each, with the space before it, as one token.
_COMMON: Final = (
    "about after again all also always and any are as at back because been before being best both but by can come could day "
    "did do down each end even every few find first for form from get give go good great had has have he her here high him "
    "his home house how if in into is it its just keep know large last left life like line little long look made make man "
    "many may me men might more most much must my name never new next no not now number of off old on one only open or "
    "other our out over own part people place point put read right room said same saw say school see set she should show "
    "side since small so some soon still such take tell than that the their them then there these they thing think this "
    "three through time to too two under up upon us use very want was water way we well went were what when where which "
    "while who why will with word work world would write year you young your"
)
_WORDS: Final = tuple(_COMMON.split())


class BenchRequest(msgspec.Struct, frozen=True):
    """One request of a workload: a prompt and the maximum length of its answer. at_s: its time in a trace, else 0."""

    index: int
    prompt: str
    output_tokens: int
    at_s: float = 0.0


class LengthRange(msgspec.Struct, frozen=True):
    """An inclusive range of token counts."""

    least: int
    most: int

    def draw(self, rng: random.Random) -> int:
        """Draw a length; all are equally likely."""
        return rng.randint(self.least, self.most)


class _WorkloadLine(msgspec.Struct, frozen=True):
    prompt: str
    max_tokens: int


class _MooncakeLine(msgspec.Struct, frozen=True):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] = ()


class _TraceRow(msgspec.Struct, frozen=True):
    """One request of a trace. blocks: ids of the prompt's blocks of 512 tokens; equal ids are equal content."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()


_Line = TypeVar("_Line")


def parse_lengths(text: str) -> LengthRange:
    """Parse a length or a range, such as `128` or `64:512`. Raises UserError."""
    least, _, most = text.partition(":")
    if not least.isdecimal() or (most and not most.isdecimal()):
        raise UserError(f"a length is a number or a range like 64:512, not {text!r}")
    lengths = LengthRange(int(least), int(most or least))
    if not 1 <= lengths.least <= lengths.most:
        raise UserError(f"a length is at least 1, and a range goes upwards: {text!r}")
    return lengths


def read_workload(path: Path, skip: int, count: int | None) -> list[BenchRequest]:
    """Read the requests of a JSONL file whose lines have `prompt` and `max_tokens`. Raises UserError naming a bad line."""
    decoder = msgspec.json.Decoder(_WorkloadLine)
    requests: list[BenchRequest] = []
    for number, line in _lines(path):
        entry = _decoded(decoder, line, path, number)
        if entry.max_tokens < 1:
            raise UserError(f"{path}, line {number}: max_tokens must be at least 1")
        requests.append(BenchRequest(len(requests), entry.prompt, entry.max_tokens))
    chosen = requests[skip : None if count is None else skip + count]
    if not chosen:
        raise UserError(f"{path} has {len(requests)} requests: none is left after the first {skip}")
    return chosen


def synthetic_requests(count: int, prompt: LengthRange, output: LengthRange, seed: int) -> list[BenchRequest]:
    """Make up requests of random lengths; prompts are words drawn at random, of about one token each."""
    rng = random.Random(seed)
    return [BenchRequest(each, _text(prompt.draw(rng), rng), output.draw(rng)) for each in range(count)]


def similar_requests(requests: Sequence[BenchRequest], count: int, seed: int) -> list[BenchRequest]:
    """Make up other prompts of about the same lengths, for a warm-up that leaves no prompt of `requests` in a prefix cache."""
    rng = random.Random(f"warm-up {seed}")
    chosen = itertools.islice(itertools.cycle(requests), count)
    return [
        BenchRequest(index, _text(max(1, len(request.prompt.split())), rng), request.output_tokens)
        for index, request in enumerate(chosen)
    ]


def read_trace(path: Path, count: int | None, tokens_max: int | None, seed: int) -> tuple[list[BenchRequest], int]:
    """Read the requests of a trace; also returns how many were left out for having more than tokens_max tokens.

    A .csv has the columns TIMESTAMP, ContextTokens and GeneratedTokens (Azure's public traces), a .jsonl file lines with
    timestamp (ms), input_length, output_length and hash_ids (Mooncake). Prompts are made up; blocks with equal ids are
    equal text. Raises UserError naming a bad line.
    """
    rows = _azure(path) if path.suffix == ".csv" else _mooncake(path)
    requests: list[BenchRequest] = []
    left_out = 0
    first_s: float | None = None
    for row in rows:
        if count is not None and len(requests) == count:
            break
        if tokens_max is not None and row.prompt_tokens + row.output_tokens > tokens_max:
            left_out += 1
            continue
        first_s = row.at_s if first_s is None else first_s
        prompt = _prompt_of(row, len(requests), seed)
        requests.append(BenchRequest(len(requests), prompt, row.output_tokens, row.at_s - first_s))
    if not requests:
        raise UserError(f"no request of {path} fits")
    return sorted(requests, key=lambda request: request.at_s), left_out


def _azure(path: Path) -> Iterator[_TraceRow]:
    for number, line in _lines(path):
        if number == 1:
            continue
        try:
            stamp, prompt, output = line.strip().split(",")
            at_s = datetime.datetime.fromisoformat(stamp).replace(tzinfo=datetime.UTC).timestamp()
            yield _TraceRow(at_s, max(1, int(prompt)), max(1, int(output)))
        except ValueError as error:
            raise UserError(f"{path}, line {number}: {error}") from error


def _mooncake(path: Path) -> Iterator[_TraceRow]:
    decoder = msgspec.json.Decoder(_MooncakeLine)
    for number, line in _lines(path):
        entry = _decoded(decoder, line, path, number)
        at_s = entry.timestamp / 1000
        yield _TraceRow(at_s, max(1, entry.input_length), max(1, entry.output_length), entry.hash_ids)


def _prompt_of(row: _TraceRow, index: int, seed: int) -> str:
    """Make up a prompt: whole blocks follow from their ids, so that equal ids share a prefix; the rest is the request's own."""
    parts = []
    left = row.prompt_tokens
    for block in row.blocks:
        if left <= 0:
            break
        parts.append(_text(min(_TRACE_BLOCK, left), random.Random(f"block {block} {seed}")))
        left -= _TRACE_BLOCK
    if left > 0:
        parts.append(_text(left, random.Random(f"request {index} {seed}")))
    return " ".join(parts)


def _text(words: int, rng: random.Random) -> str:
    return " ".join(rng.choices(_WORDS, k=words))


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with path.open() as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, line
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error


def _decoded(decoder: msgspec.json.Decoder[_Line], line: str, path: Path, number: int) -> _Line:
    try:
        return decoder.decode(line)
    except msgspec.DecodeError as error:
        raise UserError(f"{path}, line {number}: {error}") from error
