"""Keys as they are drawn, and usage as it is shown."""

import json
import re
import sqlite3
from pathlib import Path

import pytest

from noria.cli.app import run
from noria.cli.commands.keys import hash_key
from noria.cli.commands.usage import parse_since
from noria.shared.config.sources import load
from noria.shared.errors import UserError
from noria.shared.usage import ADD, SCHEMA

NOW_S = 1_800_000_000
HOUR_S = NOW_S // 3600 * 3600


def test_a_new_key_is_printed_with_its_hash_as_the_configuration_takes_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(["keys", "new", "acme.eu"]) == 0
    text = capsys.readouterr().out
    key = re.search(r"noria-[\w-]{40,}", text)
    assert key is not None
    file = tmp_path / "noria.toml"
    file.write_text(text[text.index("[tenants") :])
    assert load(file, {}, {}).tenants["acme.eu"].keys == (hash_key(key[0]),)


def test_two_keys_are_never_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["keys", "new", "acme", "--json"]) == 0
    assert run(["keys", "new", "acme", "--json"]) == 0
    first, second = re.findall(r"noria-[\w-]{40,}", capsys.readouterr().out)
    assert first != second


def test_a_name_that_no_tenant_can_have_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["keys", "new", "a b"]) == 2
    assert "is not a valid tenant name" in capsys.readouterr().err


@pytest.fixture
def state(tmp_path: Path) -> Path:
    connection = sqlite3.connect(tmp_path / "noria.sqlite")
    connection.execute(SCHEMA)
    rows = [
        ("acme", "batch", HOUR_S - 7200, 1, 100, 0, 10, 110, 0, 1_500_000),
        ("acme", "batch", HOUR_S, 2, 200, 50, 20, 170, 3, 0),
        ("acme", "batch", HOUR_S, 1, 1, 0, 1, 1, 0, 0),
        ("beta", "standard", HOUR_S, 5, 50, 0, 5, 55, 0, 0),
    ]
    connection.executemany(ADD, rows)
    connection.commit()
    connection.close()
    return tmp_path


def test_usage_is_summed_by_tenant_and_class(capsys: pytest.CaptureFixture[str], state: Path) -> None:
    assert run(["usage", "--state-dir", str(state), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["tenant"], row["requests"], row["prompt_tokens"]) for row in rows] == [
        ("acme", 4, 301),
        ("beta", 5, 50),
    ]
    assert rows[0]["cache_block_s"] == 1.5


def test_usage_of_one_tenant_from_a_time_on_is_a_table(capsys: pytest.CaptureFixture[str], state: Path) -> None:
    since = "2027-01-15T07:50+00:00"  # the hour of NOW_S
    assert run(["usage", "--state-dir", str(state), "--tenant", "acme", "--since", since]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["tenant", "class", "requests", "prompt", "cached", "output", "computed", "wasted",
                                "cache", "block-s"]  # fmt: skip
    assert [line.split() for line in lines[1:]] == [["acme", "batch", "3", "201", "50", "21", "171", "3", "0.0"]]


def test_where_nothing_was_recorded_that_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["usage", "--state-dir", str(tmp_path)]) == 2
    assert "--state-dir" in capsys.readouterr().err


def test_times_are_durations_or_dates() -> None:
    assert parse_since("", NOW_S) == 0
    assert parse_since("24h", NOW_S) == NOW_S - 86_400
    assert parse_since("2w", NOW_S) == NOW_S - 2 * 604_800
    assert parse_since("2027-01-15T08:00+00:00", 0) == 1_800_000_000
    with pytest.raises(UserError, match="neither a duration"):
        parse_since("yesterday", NOW_S)
