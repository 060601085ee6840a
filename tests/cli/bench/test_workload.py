"""What is asked, and when: files, traces, made-up prompts, arrivals."""

import itertools
from pathlib import Path

import pytest

from noria.cli.bench.arrivals import PoissonArrivals, TraceReplay, send_times
from noria.cli.bench.workload import (
    LengthRange,
    parse_lengths,
    read_trace,
    read_workload,
    similar_requests,
    synthetic_requests,
)
from noria.shared.errors import UserError

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,3960,109
2023-11-16 18:15:51.0000000,12,0
"""
MOONCAKE = """{"timestamp": 1000, "input_length": 1100, "output_length": 5, "hash_ids": [7, 8, 9]}
{"timestamp": 4000, "input_length": 600, "output_length": 3, "hash_ids": [7, 11]}
"""


def written(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text)
    return folder / name


def test_a_workload_file_gives_its_prompts_in_order(tmp_path: Path) -> None:
    lines = "".join(f'{{"id": {n}, "prompt": "p{n}", "prompt_tokens": 1, "max_tokens": {n + 1}}}\n' for n in range(5))
    path = written(tmp_path, "w.jsonl", lines)
    assert [(request.prompt, request.output_tokens) for request in read_workload(path, 1, 2)] == [("p1", 2), ("p2", 3)]
    assert len(read_workload(path, 0, None)) == 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"prompt": "a", "max_tokens": 1}\n{"prompt": 3}\n', "line 2"),
        ("nonsense\n", "line 1"),
        ('{"prompt": "a", "max_tokens": 0}\n', "at least 1"),
        ("", "none is left"),
    ],
)
def test_a_bad_workload_file_is_refused_by_name_and_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_workload(written(tmp_path, "w.jsonl", text), 0, None)
    with pytest.raises(UserError, match="cannot be read"):
        read_workload(tmp_path / "absent", 0, None)


def test_lengths_are_a_number_or_a_range() -> None:
    assert parse_lengths("128") == LengthRange(128, 128)
    assert parse_lengths("8:9") == LengthRange(8, 9)
    for wrong in ("", "x", "9:8", "0", "-1", "1:", "1:2:3"):
        if wrong != "1:":
            with pytest.raises(UserError, match="a length is"):
                parse_lengths(wrong)


def test_made_up_jobs_depend_on_the_seed_alone() -> None:
    requests = synthetic_requests(20, LengthRange(5, 9), LengthRange(1, 3), seed=4)
    assert requests == synthetic_requests(20, LengthRange(5, 9), LengthRange(1, 3), seed=4)
    assert requests != synthetic_requests(20, LengthRange(5, 9), LengthRange(1, 3), seed=5)
    assert {len(request.prompt.split()) for request in requests} == {5, 6, 7, 8, 9}
    assert {request.output_tokens for request in requests} == {1, 2, 3}
    assert len({request.prompt for request in requests}) == 20


def test_a_warm_up_has_the_jobs_lengths_and_none_of_their_text() -> None:
    requests = synthetic_requests(3, LengthRange(5, 50), LengthRange(1, 9), seed=4)
    warmup = similar_requests(requests, 5, seed=4)
    assert [len(request.prompt.split()) for request in warmup] == [
        len(requests[n % 3].prompt.split()) for n in range(5)
    ]
    assert [request.output_tokens for request in warmup] == [requests[n % 3].output_tokens for n in range(5)]
    assert not {request.prompt for request in warmup} & {request.prompt for request in requests}


def test_an_azure_trace_gives_times_and_lengths(tmp_path: Path) -> None:
    path = written(tmp_path, "azure.csv", AZURE)
    requests, left_out = read_trace(path, None, None, seed=0)
    assert [request.at_s for request in requests] == pytest.approx([0.0, 4.314579, 4.31941])
    assert [(len(request.prompt.split()), request.output_tokens) for request in requests] == [
        (374, 44),
        (3960, 109),
        (12, 1),
    ]
    assert left_out == 0


def test_what_does_not_fit_is_left_out_and_counted(tmp_path: Path) -> None:
    requests, left_out = read_trace(written(tmp_path, "azure.csv", AZURE), None, 1000, seed=0)
    assert ([request.output_tokens for request in requests], left_out) == ([44, 1], 1)
    with pytest.raises(UserError, match="no request"):
        read_trace(tmp_path / "azure.csv", None, 5, seed=0)


def test_equal_blocks_of_a_mooncake_trace_are_equal_text(tmp_path: Path) -> None:
    (first, second), _ = read_trace(written(tmp_path, "m.jsonl", MOONCAKE), None, None, seed=0)
    one, two = first.prompt.split(), second.prompt.split()
    assert (len(one), len(two)) == (1100, 600)
    assert one[:512] == two[:512]
    assert one[512:600] != two[512:600]
    assert second.at_s == 3.0


def test_a_bad_trace_is_refused_by_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="line 2"):
        read_trace(written(tmp_path, "a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\nx,1\n"), None, None, seed=0)
    with pytest.raises(UserError, match="line 1"):
        read_trace(written(tmp_path, "a.jsonl", "{}\n"), None, None, seed=0)


def test_poisson_arrivals_follow_from_the_seed_and_have_the_rate() -> None:
    requests = synthetic_requests(4000, LengthRange(1, 1), LengthRange(1, 1), seed=0)
    times = send_times(PoissonArrivals(20.0, 9), requests)
    assert times == send_times(PoissonArrivals(20.0, 9), requests)
    assert times != send_times(PoissonArrivals(20.0, 10), requests)
    assert times == sorted(times)
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(0.05, rel=0.05)
    assert sum((gap - mean) ** 2 for gap in gaps) / len(gaps) == pytest.approx(mean**2, rel=0.15)


def test_a_replay_runs_at_its_speed(tmp_path: Path) -> None:
    requests, _ = read_trace(written(tmp_path, "m.jsonl", MOONCAKE), None, None, seed=0)
    assert send_times(TraceReplay(2.0), requests) == [0.0, 1.5]
