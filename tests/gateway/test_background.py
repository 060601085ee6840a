"""Background requests and broken streams at a gateway on a real port, in front of a fake admission that keeps requests."""

import contextlib
import hashlib
import json
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from fakes.front_door import FrontDoor, Mail
from gateway.test_gateway import HI, Gateway, until

from noria.proto.base import End
from noria.proto.frontdoor import Attach, Cancel, Code, Generate, Inquire, Rejected, Standing

LATER = {"x-noria-background": "true"}


class Kept:
    """An admission that says the words of each request when it is told to, to whoever reads it."""

    def __init__(self) -> None:
        self.requests: dict[tuple[str, str], Generate] = {}
        self.said: dict[str, list[str]] = {}
        self.ends: dict[str, End] = {}
        self.readers: dict[str, bytes] = {}

    def __call__(self, door: FrontDoor, mail: Mail) -> None:
        match mail.body:
            case Generate() as body:
                self.requests.setdefault((body.credential, body.id), body)
                self.said.setdefault(body.id, [])
                self._read(door, mail, body)
            case Attach(id=name, credential=credential):
                known = self.requests.get((credential, name))
                if known is None:
                    door.send(mail.client, Rejected(name, Code.NOT_FOUND, "there is no such request", "id"))
                else:
                    self._read(door, Mail(mail.client, mail.header, known), known)
            case Inquire(id=question, request=name, credential=credential):
                known = self.requests.get((credential, name))
                if known is None:
                    door.send(mail.client, Rejected(question, Code.NOT_FOUND, "no", "id"))
                else:
                    end = self.ends.get(name, 0)
                    count = len(self.said[name])
                    door.send(
                        mail.client,
                        Standing(
                            question, name, known.background, 1000, "fake", 7, (count,), (end,), known.sampling.stop
                        ),
                    )
            case Cancel(id=name, left=left):
                if left:
                    self.readers.pop(name, None)
                elif name in self.said and name not in self.ends:
                    self.end(door, name, End.CANCELLED)
            case _:
                pass

    def say(self, door: FrontDoor, name: str, *words: str) -> None:
        start, characters = len(self.said[name]), sum(map(len, self.said[name]))
        self.said[name] += words
        if name in self.readers:
            door.say(self.readers[name], name, *words, start=start, characters=characters)

    def end(self, door: FrontDoor, name: str, end: End = End.STOP, matched: str = "") -> None:
        self.ends[name] = end
        if name in self.readers:
            door.finish(self.readers[name], name, len(self.said[name]), end, matched=matched)

    def _read(self, door: FrontDoor, mail: Mail, body: Generate) -> None:
        self.readers[body.id] = mail.client
        door.accept(mail)
        if self.said[body.id]:
            door.say(mail.client, body.id, *self.said[body.id])
        if body.id in self.ends:
            door.finish(mail.client, body.id, len(self.said[body.id]), self.ends[body.id])


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    gateway = Gateway(tmp_path_factory.mktemp("gateway"))
    yield gateway
    gateway.close()


@pytest.fixture
def kept(shared: Gateway) -> Kept:
    script = Kept()
    shared.door.received.clear()
    shared.door.script = script
    return script


def begin(gateway: Gateway, path: str = "/v1/chat/completions", **body: Any) -> dict[str, Any]:
    response = gateway.http.post(path, json=body or HI, headers=LATER)
    assert response.status_code == 202, response.text
    answer = response.json()
    assert response.headers["location"] == f"/v1/requests/{answer['id']}"
    assert isinstance(answer, dict)
    return answer


def fetch(gateway: Gateway, name: str) -> dict[str, Any]:
    response = gateway.http.get(f"/v1/requests/{name}")
    assert response.status_code == 200, response.text
    answer = response.json()
    assert isinstance(answer, dict)
    return answer


def test_a_background_request_is_answered_at_once_and_fetched_when_it_is_whole(shared: Gateway, kept: Kept) -> None:
    begun = begin(shared)
    name = begun["id"]
    assert (begun["status"], begun["choices"], begun["object"]) == ("queued", [], "chat.completion")
    kept.say(shared.door, name, "Hel", "lo")
    assert fetch(shared, name)["status"] == "in_progress"
    assert fetch(shared, name)["usage"]["completion_tokens"] == 2
    kept.end(shared.door, name)
    whole = fetch(shared, name)
    assert (whole["status"], whole["error"], whole["model"]) == ("completed", None, "fake")
    assert whole["choices"][0]["message"]["content"] == "Hello"
    assert whole["choices"][0]["finish_reason"] == "stop"
    assert abs(whole["created"] - time.time()) < 60
    assert fetch(shared, name) == whole
    assert shared.door.of(Generate)[0].background


def test_the_official_client_makes_and_fetches_a_background_request(shared: Gateway, kept: Kept) -> None:
    begun = shared.openai.completions.create(model="fake", prompt="a", extra_headers=LATER)
    assert begun.id.startswith("cmpl-") and begun.choices == []
    wire_name = shared.door.of(Generate)[0].id
    assert wire_name == f"{begun.id}~{hashlib.sha256(b'key').hexdigest()[:16]}"
    kept.say(shared.door, wire_name, "b")
    kept.end(shared.door, wire_name, End.LENGTH)
    answer = shared.openai.get(f"/requests/{begun.id}", cast_to=openai.types.Completion)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("b", "length")
    # Another key, or none, finds nothing.
    assert shared.http.get(f"/v1/requests/{begun.id}").status_code == 404
    other = shared.http.get(f"/v1/requests/{begun.id}", headers={"authorization": "Bearer other"})
    assert (other.status_code, other.json()["error"]["code"]) == (404, "not_found")


@pytest.mark.parametrize("how", ["DELETE", "POST"])
def test_a_background_request_is_cancelled_by_its_id(shared: Gateway, kept: Kept, how: str) -> None:
    name = begin(shared)["id"]
    kept.say(shared.door, name, "par")
    path = f"/v1/requests/{name}" + ("/cancel" if how == "POST" else "")
    answer = shared.http.request(how, path).json()
    assert answer["status"] == "cancelled"
    assert answer["error"]["code"] == "cancelled"
    assert answer["choices"][0]["message"]["content"] == "par"
    assert shared.http.head(f"/v1/requests/{name}").status_code == 200


def test_the_same_name_is_the_same_background_request(shared: Gateway, kept: Kept) -> None:
    headers = {**LATER, "x-request-id": "nightly"}
    first = shared.http.post("/v1/chat/completions", json=HI, headers=headers).json()
    again = shared.http.post(
        "/v1/chat/completions", json={**HI, "background": True}, headers={"x-request-id": "nightly"}
    )
    assert again.json()["id"] == first["id"]
    assert len(kept.requests) == 1


def lines(gateway: Gateway, path: str, last: str = "") -> Iterator[str]:
    with gateway.http.stream("GET", path, headers={"last-event-id": last} if last else {}) as response:
        assert response.status_code == 200
        yield from response.iter_lines()


def text_of(events: list[str]) -> str:
    chunks = [json.loads(each.removeprefix("data: ")) for each in events if each.startswith("data: {")]
    return "".join(choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"])


def test_two_readers_of_one_background_request_and_a_repetition_do_not_disturb_each_other(
    shared: Gateway, kept: Kept
) -> None:
    headers = {**LATER, "x-request-id": "watched"}
    name = shared.http.post("/v1/chat/completions", json=HI, headers=headers).json()["id"]
    heard: list[list[str]] = [[], []]

    def listen(which: int) -> None:
        heard[which].extend(lines(shared, f"/v1/requests/{name}?stream=true"))

    threads = [threading.Thread(target=listen, args=(which,)) for which in range(2)]
    for thread in threads:
        thread.start()
    shared.door.wait_for(Attach)
    kept.say(shared.door, name, "one ")
    until(lambda: all(map(text_of, heard)))
    assert fetch(shared, name)["status"] == "in_progress"
    assert shared.http.post("/v1/chat/completions", json=HI, headers=headers).status_code == 202
    kept.say(shared.door, name, "two")
    shared.door.wait_for(Attach, 2)
    kept.end(shared.door, name)
    for thread in threads:
        thread.join(60)
    assert [text_of(each) for each in heard] == ["one two", "one two"]
    assert [each[-2] for each in heard] == ["data: [DONE]"] * 2
    until(lambda: name not in kept.readers or name in kept.ends)


def test_a_broken_stream_is_continued_where_it_broke_off(shared: Gateway, kept: Kept) -> None:
    name = begin(shared)["id"]
    kept.say(shared.door, name, "Hé", "l", "lo")
    seen: list[str] = []
    with contextlib.closing(lines(shared, f"/v1/requests/{name}?stream=true")) as events:
        for line in events:
            seen.append(line)
            if "Hél" in line:
                break
    kept.say(shared.door, name, " you")
    kept.end(shared.door, name)
    last = next(line.removeprefix("id: ") for line in reversed(seen) if line.startswith("id: "))
    assert last == "0.3.5"
    rest = list(lines(shared, f"/v1/requests/{name}?stream=true", last))
    assert text_of(rest) == " you"
    assert '"finish_reason":"stop"' in "".join(rest)
    done = next(line.removeprefix("id: ") for line in reversed(rest) if line.startswith("id: "))
    assert done == "0.4.9.end"
    assert [line for line in lines(shared, f"/v1/requests/{name}?stream=true", done) if line] == ["data: [DONE]"]
    # The beginning was told already, and partial positions are told apart.
    assert text_of(list(lines(shared, f"/v1/requests/{name}?stream=true", "0.1.2"))) == "llo you"
    assert '"role"' in "".join(lines(shared, f"/v1/requests/{name}?stream=true", "-"))


def test_a_stream_that_broke_is_continued_by_its_name_and_never_made_again(shared: Gateway, kept: Kept) -> None:
    headers = {"x-request-id": "mine", "last-event-id": "0.1.3"}
    unknown = shared.http.post("/v1/chat/completions", json={**HI, "stream": True}, headers=headers)
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (404, "X-Request-Id")
    assert not shared.door.of(Generate)
    kept.requests["", "mine"] = Generate("mine")
    kept.said["mine"] = ["Hel", "lo"]
    kept.ends["mine"] = End.STOP
    with shared.http.stream("POST", "/v1/chat/completions", json={**HI, "stream": True}, headers=headers) as response:
        assert text_of(list(response.iter_lines())) == "lo"
    for wrong in (
        {**headers, "last-event-id": "0.1"},
        {**headers, "last-event-id": "0.1.3,0.0.0"},
        {"last-event-id": "-"},
    ):
        refused = shared.http.post("/v1/chat/completions", json={**HI, "stream": True}, headers=wrong)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "Last-Event-ID")


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/completions", {"prompt": ["a", "b"]}), ("/v1/completions", {"prompt": "a", "echo": True})],
    ids=["two prompts", "echo"],
)
def test_what_cannot_be_fetched_later_is_refused_in_the_background(
    shared: Gateway, kept: Kept, path: str, body: dict[str, Any]
) -> None:
    refused = shared.http.post(path, json=body, headers=LATER)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompt")
    assert shared.http.post(path, json={"prompt": "a"}, headers={"x-noria-background": "maybe"}).status_code == 400


def test_nobody_fetches_or_cancels_a_request_that_is_read_in_the_foreground(shared: Gateway, kept: Kept) -> None:
    kept.requests["", "chatcmpl-front"] = Generate("chatcmpl-front")
    kept.said["chatcmpl-front"] = []
    for method in ("GET", "DELETE"):
        assert shared.http.request(method, "/v1/requests/chatcmpl-front").status_code == 404
    assert shared.http.get("/v1/requests/other").status_code == 404
    assert not shared.door.of(Cancel)


def test_a_background_request_that_nobody_can_name_is_cancelled_when_its_sender_goes(
    shared: Gateway, kept: Kept
) -> None:
    shared.door.script = lambda door, mail: None
    data = json.dumps({**HI, "background": True}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", shared.shell.port), timeout=60) as connection:
        connection.sendall(head + data)
        shared.door.wait_for(Generate)
    until(lambda: any(not each.left for each in shared.door.of(Cancel)))


def test_curl_makes_fetches_and_follows_a_background_request(shared: Gateway, kept: Kept) -> None:
    def curl(*arguments: str) -> str:
        return subprocess.run(["curl", "-sS", "-N", "--noproxy", "*", "--max-time", "60", *arguments],
                              capture_output=True, text=True, check=True).stdout  # fmt: skip

    url = f"http://127.0.0.1:{shared.shell.port}/v1"
    made = curl(
        "-H",
        "X-Noria-Background: true",
        "-H",
        "Content-Type: application/json",
        "-d",
        json.dumps(HI),
        f"{url}/chat/completions",
    )
    name = json.loads(made)["id"]
    kept.say(shared.door, name, "Hello")
    kept.end(shared.door, name)
    assert json.loads(curl(f"{url}/requests/{name}"))["choices"][0]["message"]["content"] == "Hello"
    assert text_of(curl(f"{url}/requests/{name}?stream=1").splitlines()) == "Hello"
    assert curl("-H", "Last-Event-ID: 0.1.5", f"{url}/requests/{name}?stream=1").count("Hello") == 0
