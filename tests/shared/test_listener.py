"""The HTTP socket is handed from a gateway to the next supervisor, and stays open though the gateway dies."""

import multiprocessing
import socket
from pathlib import Path

import pytest

from noria.shared.process.listener import ListenerHandover, request_listener


def serve_one(folder: str, port: "multiprocessing.Queue[int]") -> None:
    """A gateway that gives its socket away once and dies."""
    listener = socket.create_server(("127.0.0.1", 0))
    offer = ListenerHandover(listener, Path(folder))
    offer.socket.setblocking(True)
    port.put(listener.getsockname()[1])
    offer.answer()


def test_who_asks_has_the_same_socket_and_connections_wait_there_after_the_giver_is_gone(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    told: multiprocessing.Queue[int] = context.Queue()
    giver = context.Process(target=serve_one, args=(str(tmp_path), told))
    giver.start()
    port = told.get(timeout=60)
    given = request_listener(tmp_path)
    giver.join(60)
    assert given is not None
    with given, socket.create_connection(("127.0.0.1", port), timeout=60) as waiting:
        assert given.getsockname()[1] == port
        assert not given.get_inheritable()
        given.settimeout(60)
        accepted, _ = given.accept()
        with accepted:
            accepted.sendall(b"here")
            assert waiting.recv(4) == b"here"


def test_nobody_answers_where_there_is_nobody_or_nobody_any_more(tmp_path: Path) -> None:
    assert request_listener(tmp_path) is None
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ListenerHandover(listener, tmp_path).close()
    assert request_listener(tmp_path) is None


def test_the_offer_is_its_owners_alone_and_a_next_one_takes_its_place(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        first, second = ListenerHandover(listener, tmp_path), ListenerHandover(listener, tmp_path)
        assert (tmp_path / "door.sock").stat().st_mode & 0o777 == 0o600
        first.close()
        second.socket.settimeout(60)
        with socket.socket(socket.AF_UNIX) as asking:
            asking.connect(str(tmp_path / "door.sock"))
            second.answer()
            assert socket.recv_fds(asking, 1, 1)[1]
        second.close()


@pytest.mark.parametrize("folder", ["missing", "x" * 120])
def test_where_nobody_can_ask_the_door_is_served_all_the_same(folder: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        offer = ListenerHandover(listener, tmp_path / folder)
        assert not offer.available
        offer.close()
