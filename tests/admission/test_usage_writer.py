"""What is written to the database: whole, once, by hour, and for its owner's eyes alone."""

import sqlite3
from pathlib import Path

import pytest

from noria.services.admission.core.ledger.usage_counters import CountedCosts
from noria.services.admission.core.tenants.class_totals import TokenUsage, UsageKey
from noria.services.admission.storage.database import AdmissionDatabase
from noria.services.admission.storage.usage_writer import TABLES, UsageWriter
from noria.shared.errors import UserError
from noria.shared.usage import read

ACME, BETA = UsageKey("acme", "batch"), UsageKey("beta", "standard")
SECOND = 1_000_000_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "noria.sqlite"


def test_the_file_and_its_folder_are_the_owners_alone(path: Path) -> None:
    AdmissionDatabase(path, TABLES).close()
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_usage_of_many_turns_adds_up_and_is_written_at_most_once_a_second(path: Path) -> None:
    book = UsageWriter(AdmissionDatabase(path, TABLES))
    for turn in range(100):
        book.add({ACME: TokenUsage(requests=1, prompt_tokens=turn), BETA: TokenUsage(output_tokens=2)}, CountedCosts())
        next_wakeup_ns = book.advance(turn * SECOND // 10)
    assert next_wakeup_ns == 10 * SECOND
    book.close()
    acme, beta = read(path)
    assert (acme.tenant, acme.requests, acme.prompt_tokens) == ("acme", 100, 4950)
    assert (beta.traffic_class, beta.output_tokens) == ("standard", 200)


def test_a_second_life_adds_to_the_first(path: Path) -> None:
    for _ in range(2):
        book = UsageWriter(AdmissionDatabase(path, TABLES))
        book.add({ACME: TokenUsage(requests=1, block_us=1_500_000)}, CountedCosts())
        book.close()
    (row,) = read(path, tenant="acme")
    assert (row.requests, row.cache_block_s) == (2, 3.0)


def test_what_a_busy_database_does_not_take_waits_and_is_written_once(path: Path) -> None:
    book = UsageWriter(AdmissionDatabase(path, TABLES))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    book.add({ACME: TokenUsage(requests=1)}, CountedCosts())
    assert book.advance(SECOND) is not None
    other.execute("ROLLBACK")
    other.close()
    assert book.advance(3 * SECOND) is None
    book.close()
    assert read(path)[0].requests == 1


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="--state-dir"):
        AdmissionDatabase(tmp_path / "file" / "noria.sqlite", TABLES)
