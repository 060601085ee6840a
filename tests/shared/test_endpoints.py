"""Where mailboxes are, and which places are refused."""

from pathlib import Path

import msgspec
import pytest

from noria.proto.base import Service
from noria.shared.actor.endpoints import (
    IPC_PATH_BYTES_MAX,
    mailbox,
    prepare_runtime_dir,
    public_mailbox,
    runtime_dir,
    split_address,
)
from noria.shared.config.config import RuntimeSettings
from noria.shared.errors import UserError

TCP = RuntimeSettings(transport="tcp", hosts={"executor": "10.0.0.2"})


def test_the_runtime_folder_is_made_private(tmp_path: Path) -> None:
    folder = prepare_runtime_dir(RuntimeSettings(dir=str(tmp_path / "a" / "run")))
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_runtime_folder_open_to_others_is_refused(tmp_path: Path) -> None:
    open_folder = tmp_path / "run"
    open_folder.mkdir()
    open_folder.chmod(0o750)
    with pytest.raises(UserError, match="chmod 700"):
        prepare_runtime_dir(RuntimeSettings(dir=str(open_folder)))


def test_a_file_where_the_runtime_folder_should_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(UserError, match="--runtime-dir"):
        prepare_runtime_dir(RuntimeSettings(dir=str(tmp_path / "run")))


def test_a_socket_path_of_107_bytes_is_possible_and_of_108_is_not(tmp_path: Path) -> None:
    longest = "/supervisor.sock"
    assert max(len(service.value) for service in Service) == len("detokenizer")
    room = IPC_PATH_BYTES_MAX - len("/detokenizer.sock") - len(str(tmp_path)) - 1
    assert room > len(longest) - len("/detokenizer.sock")
    fits = tmp_path / ("x" * room)
    assert prepare_runtime_dir(RuntimeSettings(dir=str(fits))) == fits
    with pytest.raises(UserError, match="108 bytes, at most 107"):
        prepare_runtime_dir(RuntimeSettings(dir=f"{fits}x"))


def test_length_is_no_matter_over_tcp(tmp_path: Path) -> None:
    prepare_runtime_dir(RuntimeSettings(dir=str(tmp_path / ("x" * 150)), transport="tcp"))


def test_every_mailbox_has_its_own_endpoint() -> None:
    for settings in (RuntimeSettings(dir="/run/x"), TCP):
        endpoints = {mailbox(settings, service) for service in Service} | {public_mailbox(settings)}
        assert len(endpoints) == len(Service) + 1


def test_over_tcp_peers_are_found_at_their_hosts_and_the_public_door_at_admissions() -> None:
    assert mailbox(TCP, Service.EXECUTOR).startswith("tcp://10.0.0.2:")
    assert mailbox(TCP, Service.SCHEDULER).startswith("tcp://127.0.0.1:")
    there = msgspec.structs.replace(TCP, hosts={"admission": "10.0.0.9"})
    assert public_mailbox(there) == f"tcp://10.0.0.9:{there.base_port + len(Service)}"


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.2", "::", "example.org"])
def test_binding_beyond_loopback_is_refused_without_the_explicit_flag(host: str) -> None:
    settings = msgspec.structs.replace(TCP, bind_host=host)
    with pytest.raises(UserError, match="--insecure-tcp"):
        mailbox(settings, Service.EXECUTOR, binding=True)
    allowed = msgspec.structs.replace(settings, insecure_tcp=True)
    assert mailbox(allowed, Service.EXECUTOR, binding=True).startswith(f"tcp://{host}:")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.8.8.8"])
def test_binding_on_loopback_is_allowed(host: str) -> None:
    mailbox(msgspec.structs.replace(TCP, bind_host=host), Service.EXECUTOR, binding=True)


def test_the_runtime_folder_follows_xdg_where_it_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert runtime_dir(RuntimeSettings()) == Path("/run/user/7/noria")
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert runtime_dir(RuntimeSettings()).name.startswith("noria-")


@pytest.mark.parametrize("address", ["8000", "localhost:", ":80", "localhost:x", "localhost:99999"])
def test_a_bad_address_says_how_to_write_it(address: str) -> None:
    with pytest.raises(UserError, match="HOST:PORT"):
        split_address(address)


def test_addresses_may_be_of_either_family() -> None:
    assert split_address("[::1]:80") == ("::1", 80)
    assert split_address("0.0.0.0:8000") == ("0.0.0.0", 8000)
