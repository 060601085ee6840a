"""Key files: what is made, what is refused."""

import stat
from pathlib import Path

import pytest
import zmq
from zmq.utils import z85

from noria.cli.app import run
from noria.proto.base import Service
from noria.shared.actor.curve import (
    CLIENTS,
    OWNERS,
    Curve,
    CurveKeyPair,
    CurveKeys,
    configured_curve_keys,
    make_key_pairs,
)
from noria.shared.actor.curve_authenticator import zap_reply
from noria.shared.config.config import RuntimeSettings
from noria.shared.errors import UserError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_key_pairs(tmp_path / "keys", OWNERS)
    return tmp_path / "keys"


def test_everybody_gets_a_pair_that_only_the_owner_can_read(folder: Path) -> None:
    keys = CurveKeys(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}
    assert len({keys.key_pair(owner).secret for owner in OWNERS}) == len(OWNERS)
    for owner in OWNERS:
        pair = keys.key_pair(owner)
        assert zmq.curve_public(pair.secret) == pair.public == keys.curve_to(owner, "tools").server
    assert set(keys.internal_keys().values()) == {*(each.value for each in Service), "tools"}


def test_keys_that_are_there_are_never_replaced(folder: Path) -> None:
    before = CurveKeys(folder).key_pair("public")
    (folder / "executor.key").unlink()
    assert make_key_pairs(folder, OWNERS) == []
    (folder / "executor.key_secret").unlink()
    assert make_key_pairs(folder, OWNERS) == ["executor"]
    assert CurveKeys(folder).key_pair("public") == before


def test_a_secret_is_not_shown() -> None:
    pair = CurveKeyPair.generate()
    assert pair.secret.decode() not in f"{pair} {pair!r} {Curve(b'x', pair)!r}"


def test_a_secret_that_others_can_read_is_refused(folder: Path) -> None:
    (folder / "scheduler.key_secret").chmod(0o644)
    with pytest.raises(UserError, match="chmod 600"):
        CurveKeys(folder).key_pair("scheduler")


@pytest.mark.parametrize("text", ["", 'public-key = "short"', "nonsense"])
def test_a_broken_or_missing_key_is_named(folder: Path, text: str) -> None:
    (folder / "scheduler.key").write_text(text)
    with pytest.raises(UserError, match=r"scheduler\.key"):
        CurveKeys(folder).curve_to("scheduler", "tools")
    with pytest.raises(UserError, match="noria keys curve"):
        CurveKeys(folder / "elsewhere").key_pair("scheduler")
    with pytest.raises(UserError, match="key_secret"):
        Curve.load(folder / "public.key", folder / "public.key")


def test_the_public_mailbox_admits_everybody_until_there_is_a_list(folder: Path) -> None:
    assert CurveKeys(folder).client_keys() is None
    make_key_pairs(folder / CLIENTS, ("alice",))
    admitted = CurveKeys(folder).client_keys()
    assert admitted is not None and sorted(admitted.values()) == ["alice", "gateway", "tools"]


def test_whoever_asks_for_people_uses_the_tools_key_or_the_one_at_hand(folder: Path) -> None:
    assert CurveKeys(folder).tools_owner() == "tools"
    for secret in folder.glob("*.key_secret"):
        if secret.name != "executor.key_secret":
            secret.unlink()
    assert CurveKeys(folder).tools_owner() == "executor"
    (folder / "executor.key_secret").unlink()
    with pytest.raises(UserError, match="no secret key"):
        CurveKeys(folder).tools_owner()


def test_keys_are_used_with_tcp_alone(folder: Path) -> None:
    assert configured_curve_keys(RuntimeSettings(curve_dir=str(folder))) is None
    assert configured_curve_keys(RuntimeSettings(transport="tcp")) is None
    assert configured_curve_keys(RuntimeSettings(transport="tcp", curve_dir=str(folder))) is not None


def question(
    key: bytes, domain: bytes = b"scheduler", mechanism: bytes = b"CURVE", version: bytes = b"1.0"
) -> list[bytes]:
    return [version, b"7", domain, b"127.0.0.1", b"", mechanism, z85.decode(key)]


def test_the_gate_admits_by_domain_and_key_and_names_the_holder() -> None:
    known, other = CurveKeyPair.generate().public, CurveKeyPair.generate().public
    admitted = {"scheduler": {known: "admission"}, "public": None}
    assert zap_reply(question(known), admitted)[1:5] == [b"7", b"200", b"OK", b"admission"]
    assert zap_reply(question(other, b"public"), admitted)[2] == b"200"
    refused = [
        question(other),
        question(known, b"executor"),
        question(known, mechanism=b"NULL"),
        question(known, version=b"2.0"),
        question(known)[:-1],
        [*question(known)[:-1], b"short"],
        [],
    ]
    assert [zap_reply(each, admitted)[2] for each in refused] == [b"400"] * len(refused)


def test_the_commands_make_keys_and_say_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "keys"
    assert run(["keys", "curve", str(folder)]) == 0
    assert f"--curve-dir {folder}" in capsys.readouterr().out
    assert run(["keys", "client", "alice", str(folder)]) == 0
    assert run(["keys", "client", "alice", str(folder)]) == 2
    assert run(["keys", "client", "a b", str(folder)]) == 2
    assert (folder / "clients" / "alice.key_secret").exists()
