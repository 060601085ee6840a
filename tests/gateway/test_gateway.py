"""The gateway on a real port, between HTTP clients and a fake admission."""

import contextlib
import hashlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import openai
import pytest
from fakes.front_door import FrontDoor, Mail, refuse, words

from noria.proto.base import End, Service
from noria.proto.frontdoor import Acknowledge, Cancel, Code, Description, Forecast, Generate, Message, Preview
from noria.proto.lifecycle import State
from noria.services.gateway.config import gateway_config
from noria.services.gateway.http_protocol import HEAD_BYTES_MAX, BoundedHttpProtocol
from noria.services.gateway.service import GatewayService
from noria.shared.actor.actor import Actor
from noria.shared.actor.endpoints import mailbox, prepare_runtime_dir, public_mailbox
from noria.shared.actor.inspect import inspect
from noria.shared.actor.mailbox import Mailbox
from noria.shared.config.config import Config, HttpSettings, RuntimeSettings, TelemetrySettings
from noria.shared.telemetry.telemetry import Telemetry

DIGEST = hashlib.sha256(b"secret").hexdigest()[:16]
HI = {"messages": [{"role": "user", "content": "hi"}]}

STREAM = {**HI, "stream": True}


class Gateway:
    """A gateway's actor in a thread, and its fake admission."""

    def __init__(self, folder: Path) -> None:
        runtime = RuntimeSettings(dir=str(folder))
        prepare_runtime_dir(runtime)
        self.config = Config(http=HttpSettings(address="127.0.0.1:0", body_bytes_max=100_000), runtime=runtime)
        self.door = FrontDoor(public_mailbox(runtime)).start()
        actor = Actor(Mailbox(Service.GATEWAY, mailbox(runtime, Service.GATEWAY), {}, runtime), runtime)
        self.shell = GatewayService(
            actor, gateway_config(self.config), Telemetry(Service.GATEWAY, 1, TelemetrySettings())
        )
        self.actor = actor
        self.thread = threading.Thread(target=actor.run, args=(self.shell,))
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.shell.port}"
        self.http = httpx.Client(base_url=self.url, timeout=60, trust_env=False)
        self.openai = openai.OpenAI(
            base_url=f"{self.url}/v1",
            api_key="key",
            max_retries=0,
            timeout=60,
            http_client=httpx.Client(trust_env=False),
        )

    def close(self) -> None:
        self.http.close()
        self.openai.close()
        self.actor.stop()
        self.thread.join(30)
        self.door.stop()
        assert not self.thread.is_alive()

    def events(self, path: str, body: dict[str, Any], headers: dict[str, str] | None = None) -> list[Any]:
        with self.http.stream("POST", path, json={**body, "stream": True}, headers=headers) as response:
            assert response.status_code == 200
            assert response.headers["content-type"].startswith("text/event-stream")
            assert response.headers["cache-control"] == "no-cache"
            lines = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]
        assert lines[-1] == "[DONE]"
        return [json.loads(line) for line in lines[:-1]]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    gateway = Gateway(tmp_path_factory.mktemp("gateway"))
    yield gateway
    gateway.close()


@pytest.fixture
def gateway(shared: Gateway) -> Gateway:
    shared.door.received.clear()
    shared.door.script = words("Hel", "lo")
    shared.door.description = Description(models=("fake", "also/fake"), max_model_tokens=64, started_unix_s=5)
    return shared


def endless(door: FrontDoor, mail: Mail) -> None:
    if isinstance(mail.body, Generate):
        door.accept(mail)
        door.say(mail.client, mail.body.id, "a", "b")
    if isinstance(mail.body, Cancel):
        door.finish(mail.client, mail.body.id, 2, End.CANCELLED)


def sent(gateway: Gateway) -> Generate:
    body = gateway.door.wait_for(Generate).body
    assert isinstance(body, Generate)
    return body


def until(condition: Any) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_the_official_client_gets_a_whole_chat(gateway: Gateway) -> None:
    gateway.door.script = words("Hel", "lo", matched="lo")
    answer = gateway.openai.chat.completions.create(
        model="fake",
        messages=[
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]},
        ],
        n=2,
        temperature=0,
        max_completion_tokens=5,
        stop=["lo"],
        seed=3,
        extra_body={"top_k": 4, "min_p": 0.5, "min_tokens": 1, "ignore_eos": True, "stop_token_ids": [9]},
    )
    assert [choice.message.content for choice in answer.choices] == ["Hello", "Hello"]
    assert answer.choices[1].finish_reason == "stop"
    assert answer.choices[1].model_extra == {"stop_reason": "lo"}
    assert answer.model == "fake"
    assert answer.id.startswith("chatcmpl-")
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (7, 4, 11)
    body = sent(gateway)
    assert body.messages == (Message("system", "be brief"), Message("user", "hi"))
    assert (body.n, body.model, body.credential, body.id) == (2, "fake", "key", answer.id)
    sampling = body.sampling
    assert (sampling.temperature, sampling.max_tokens, sampling.stop, sampling.seed) == (0, 5, ("lo",), 3)
    assert (sampling.top_k, sampling.min_p, sampling.min_tokens) == (4, 0.5, 1)
    assert (sampling.ignore_eos, sampling.stop_token_ids) == (True, (9,))


def test_the_official_client_streams_a_chat(gateway: Gateway) -> None:
    chunks = list(
        gateway.openai.chat.completions.create(
            model="fake",
            messages=[{"role": "user", "content": "hi"}],
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "Hello"
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 2) + ["stop"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 9
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    body = sent(gateway)
    assert (body.sampling.temperature, body.sampling.top_p, body.sampling.max_tokens) == (1.0, 1.0, None)


def test_the_official_client_completes_several_prompts(gateway: Gateway) -> None:
    def script(door: FrontDoor, mail: Mail) -> None:
        if isinstance(mail.body, Generate):
            words(f"<{mail.body.prompt}>", end=End.LENGTH)(door, mail)

    gateway.door.script = script
    answer = gateway.openai.completions.create(model="fake", prompt=["a", "b"], n=2, echo=True)
    assert [choice.text for choice in answer.choices] == ["a<a>", "a<a>", "b<b>", "b<b>"]
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (14, 4)
    assert [body.sampling.max_tokens for body in gateway.door.of(Generate)] == [16, 16]

    texts = ["", ""]
    for chunk in gateway.openai.completions.create(model="fake", prompt=["a", "b"], echo=True, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == ["a<a>", "b<b>"]


@pytest.mark.parametrize(
    ("prompt", "expected"), [([1, 2], [(1, 2)]), ([[1], [2, 3]], [(1,), (2, 3)])], ids=["one", "two"]
)
def test_prompts_may_be_token_ids(gateway: Gateway, prompt: Any, expected: Any) -> None:
    assert gateway.http.post("/v1/completions", json={"prompt": prompt}).status_code == 200
    assert [body.token_ids for body in gateway.door.of(Generate)] == expected


def test_penalties_and_bias_reach_admission(gateway: Gateway) -> None:
    gateway.openai.chat.completions.create(
        model="fake",
        messages=[{"role": "user", "content": "hi"}],
        presence_penalty=0.5,
        frequency_penalty=-1.5,
        logit_bias={"7": -100, "9": 2.5},
        extra_body={"repetition_penalty": 1.25},
    )
    sampling = sent(gateway).sampling
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (0.5, -1.5, 1.25)
    assert dict(sampling.logit_bias) == {7: -100.0, 9: 2.5}
    assert sampling.logprobs is None


@pytest.mark.parametrize("stream", [False, True])
def test_the_official_client_gets_a_chats_log_probabilities(gateway: Gateway, stream: bool) -> None:
    gateway.door.script = words("Hé", "", "l")
    options: dict[str, Any] = {"model": "fake", "messages": [{"role": "user", "content": "hi"}], "stream": stream}
    answer = gateway.openai.chat.completions.create(**options, logprobs=True, top_logprobs=2)
    choices = [chunk.choices[0] for chunk in answer] if stream else [answer.choices[0]]
    content = [each for choice in choices if choice.logprobs for each in choice.logprobs.content]
    assert [each.token for each in content] == ["Hé", "", "l"]
    assert (content[0].bytes, content[0].logprob) == ([72, 195, 169], -0.5)
    assert [(each.token, each.bytes, each.logprob) for each in content[0].top_logprobs] == [
        ("Hé", [72, 195, 169], -0.5),
        ("\ufffd", [240], -1.25),
    ]
    assert sent(gateway).sampling.logprobs == 2


@pytest.mark.parametrize("stream", [False, True])
def test_the_official_client_gets_a_completions_log_probabilities(gateway: Gateway, stream: bool) -> None:
    gateway.door.script = words("Hé", "", "l")
    answer = gateway.openai.completions.create(model="fake", prompt="a", logprobs=0, stream=stream)
    choices = [chunk.choices[0] for chunk in answer] if stream else [answer.choices[0]]
    told = [choice.logprobs for choice in choices if choice.logprobs]
    assert [token for each in told for token in each.tokens] == ["Hé", "", "l"]
    assert [logprob for each in told for logprob in each.token_logprobs] == [-0.5] * 3
    assert [offset for each in told for offset in each.text_offset] == [0, 2, 2]
    assert told[0].top_logprobs[0] == {"Hé": -0.5, "\ufffd": -1.25}
    assert sent(gateway).sampling.logprobs == 0


def test_a_stream_has_positions_and_null_finish_reasons_until_the_last(gateway: Gateway) -> None:
    with gateway.http.stream("POST", "/v1/chat/completions", json={**HI, "stream": True}) as response:
        text = response.read().decode()
    identities = [line for line in text.splitlines() if line.startswith("id: ")]
    assert identities[0] == "id: 0.0.0"
    assert identities[-1] == "id: 0.2.5.end"
    events = gateway.events("/v1/chat/completions", HI)
    assert events[0]["choices"][0] == {
        "index": 0,
        "delta": {"role": "assistant", "content": ""},
        "logprobs": None,
        "finish_reason": None,
        "stop_reason": None,
    }
    assert events[-1]["choices"][0]["delta"] == {}
    assert all("usage" not in event for event in events)


def test_headers_reach_admission(gateway: Gateway) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    headers = {"x-request-id": "mine", "x-noria-class": "batch", "traceparent": trace, "authorization": "Bearer secret"}
    response = gateway.http.post("/v1/chat/completions", json={**HI, "service_tier": "flex"}, headers=headers)
    assert response.headers["x-request-id"] == "mine"
    mail = gateway.door.wait_for(Generate)
    body = sent(gateway)
    # The name is told apart from the same name chosen by the holder of another key.
    assert (body.id, body.traffic_class, body.credential) == (f"mine~{DIGEST}", "batch", "secret")
    assert mail.header.traceparent.startswith(trace[:36])
    assert mail.header.traceparent != trace, "the gateway's own span stands between"
    gateway.http.post("/v1/chat/completions", json={**HI, "service_tier": "auto"})
    assert gateway.door.of(Generate)[1].traffic_class == ""
    assert not body.keep
    response = gateway.http.post("/v1/chat/completions", json=HI, headers={"x-request-id": "a b"})
    assert response.json()["error"]["param"] == "X-Request-Id"


@pytest.mark.parametrize(
    ("code", "status", "kind", "named"),
    [
        (Code.INVALID, 400, "invalid_request_error", "invalid"),
        (Code.UNSUPPORTED, 400, "invalid_request_error", "unsupported"),
        (Code.CONTEXT_LENGTH, 400, "invalid_request_error", "context_length_exceeded"),
        (Code.MODEL_NOT_FOUND, 404, "invalid_request_error", "model_not_found"),
        (Code.NOT_FOUND, 404, "invalid_request_error", "not_found"),
        (Code.CONFLICT, 409, "invalid_request_error", "conflict"),
        (Code.UNAUTHORIZED, 401, "invalid_request_error", "invalid_api_key"),
        (Code.QUOTA, 429, "rate_limit_error", "quota"),
        (Code.OVERLOADED, 503, "server_error", "overloaded"),
        (Code.NOT_READY, 503, "server_error", "not_ready"),
        (Code.DEADLINE, 504, "timeout_error", "deadline"),
        (Code.INTERNAL, 500, "server_error", "internal"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_each_refusal_has_its_status(
    gateway: Gateway, code: Code, status: int, kind: str, named: str, stream: bool
) -> None:
    gateway.door.script = refuse(code, "because", "include_stop", 1500)
    response = gateway.http.post("/v1/chat/completions", json={**HI, "stream": stream})
    assert response.status_code == status
    error = response.json()["error"]
    assert error == {"message": "because", "type": kind, "param": "include_stop_str_in_output", "code": named}
    assert response.headers.get("retry-after") == ("2" if status in (429, 503, 504) else None)


@pytest.mark.parametrize(
    ("end", "status"), [(End.DEADLINE, 504), (End.SHED, 503), (End.ERROR, 500), (End.CANCELLED, 503)]
)
def test_an_end_that_is_no_answer_is_an_error(gateway: Gateway, end: End, status: int) -> None:
    gateway.door.script = words("par", "tial", end=end, detail="why")
    response = gateway.http.post("/v1/chat/completions", json=HI)
    assert response.status_code == status
    assert response.json()["error"]["message"] == "why"
    events = gateway.events("/v1/chat/completions", HI)
    assert events[-1]["error"]["message"] == "why"
    with pytest.raises(openai.APIError, match="why"):
        list(
            gateway.openai.chat.completions.create(
                model="fake", messages=[{"role": "user", "content": "hi"}], stream=True
            )
        )


BAD_CHATS: list[tuple[dict[str, Any], str | None]] = [
    ({}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [{"role": "wizard", "content": "hi"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0]"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
    ({**HI, "temperature": "hot"}, "temperature"),
    ({**HI, "max_tokens": 1.5}, "max_tokens"),
    ({**HI, "max_tokens": True}, "max_tokens"),
    ({**HI, "max_tokens": 3, "max_completion_tokens": 4}, "max_completion_tokens"),
    ({**HI, "n": 0}, "n"),
    ({**HI, "n": 10**9}, "n"),
    ({**HI, "stop": [1]}, "stop[0]"),
    ({**HI, "seed": 2**80}, "seed"),
    ({**HI, "logprobs": 3}, "logprobs"),
    ({**HI, "top_logprobs": 2}, "top_logprobs"),
    ({**HI, "logprobs": False, "top_logprobs": 2}, "top_logprobs"),
    ({**HI, "presence_penalty": "much"}, "presence_penalty"),
    ({**HI, "logit_bias": {"1": "up"}}, "logit_bias[...]"),
    ({**HI, "logit_bias": [[1, 2]]}, "logit_bias"),
    ({**HI, "logit_bias": {str(2**80): 1}}, "logit_bias"),
    ({**HI, "tools": [{"type": "function"}]}, "tools"),
    ({**HI, "response_format": {"type": "json_object"}}, "response_format"),
    ({**HI, "response_format": 3}, "response_format"),
    ({**HI, "modalities": ["audio"]}, "modalities"),
    ({**HI, "stream_options": {"include_usage": True}}, "stream_options"),
    ({**HI, "guided_json": {"type": "object"}}, "guided_json"),
]


@pytest.mark.parametrize(("body", "param"), BAD_CHATS, ids=[json.dumps(body)[-50:] for body, _ in BAD_CHATS])
def test_a_bad_chat_is_refused_by_the_name_of_what_is_wrong(
    gateway: Gateway, body: dict[str, Any], param: str | None
) -> None:
    response = gateway.http.post("/v1/chat/completions", json=body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    assert not gateway.door.of(Generate)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": 3}, "prompt"),
        ({"prompt": ["x"] * 129}, "prompt"),
        ({"prompt": [2**80]}, "prompt"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({"prompt": "a", "best_of": 2}, "best_of"),
        ({"prompt": "a", "logprobs": True}, "logprobs"),
        ({"prompt": "a", "logprobs": 0, "echo": True}, "logprobs"),
        ({"prompt": [1], "echo": True}, "echo"),
    ],
)
def test_a_bad_completion_is_refused_by_the_name_of_what_is_wrong(
    gateway: Gateway, body: dict[str, Any], param: str
) -> None:
    response = gateway.http.post("/v1/completions", json=body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


def test_unknown_fields_and_neutral_values_are_accepted(gateway: Gateway) -> None:
    neutral = {
        "logprobs": False,
        "presence_penalty": 0,
        "logit_bias": {},
        "tools": [],
        "response_format": {"type": "text"},
    }
    body = {**HI, **neutral, "user": "me", "store": True, "metadata": {"a": "b"}, "stop": None, "top_k": -1, "x": [[1]]}
    response = gateway.http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    assert sent(gateway).sampling.top_k == -1  # admission takes it for off, as it does 0


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"nonsense",
        b'{"messages": [{"role": "user", "content": "hi"}], "temperature": NaN}',
        b'{"messages": [{"role": "user", "content": "hi"}], "temperature": 1e999}',
        b'{"messages": [{"role": "user", "content": "hi"}], "temperature": Infinity}',
        b'{"messages": [{"role": "user", "content": "\xff"}]}',
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"messages": [], "x": ' + b"[" * 40_000 + b"]" * 40_000 + b"}",
        b'{"messages": [], "tools": ' + b'{"a":' * 10_000 + b"1" + b"}" * 10_000 + b"}",
    ],
    ids=range(11),
)
def test_a_body_that_is_not_json_is_a_400(gateway: Gateway, data: bytes) -> None:
    response = gateway.http.post("/v1/chat/completions", content=data)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_a_large_body_is_refused_while_it_is_read(gateway: Gateway) -> None:
    for content in (b"x" * 200_000, iter([b"x" * 60_000] * 4)):
        response = gateway.http.post("/v1/chat/completions", content=content)
        assert response.status_code == 413
        assert response.json()["error"]["code"] == "body_too_large"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/chat/completions", 405),
        ("POST", "/v1/models", 405),
        ("GET", "/v1/nothing", 404),
        ("GET", "/v1/models/none", 404),
    ],
)
def test_wrong_methods_and_paths_have_errors_of_the_same_form(
    gateway: Gateway, method: str, path: str, status: int
) -> None:
    response = gateway.http.request(method, path)
    assert response.status_code == status
    assert response.json()["error"].keys() == {"message", "type", "param", "code"}


def test_the_models_served_are_listed(gateway: Gateway) -> None:
    assert [model.id for model in gateway.openai.models.list()] == ["fake", "also/fake"]
    assert gateway.openai.models.retrieve("fake").created == 5
    assert gateway.http.get("/v1/models/also/fake").json()["max_model_len"] == 64
    assert "also/fake" in gateway.http.get("/v1/models/none").json()["error"]["message"]
    assert "/v1/models" in gateway.http.get("/").json()["urls"]


def test_ready_says_what_is_missing(gateway: Gateway) -> None:
    assert gateway.http.get("/health").json() == {"status": "ok"}
    assert gateway.http.get("/ready").json() == {"ready": True, "waiting_for": []}
    gateway.door.description = Description(("fake",), 64, waiting_for=("executor",))
    response = gateway.http.get("/ready")
    assert response.status_code == 503
    assert response.json() == {"ready": False, "waiting_for": ["executor"]}
    assert gateway.http.get("/health").status_code == 200


def test_the_state_of_every_process_is_shown(gateway: Gateway) -> None:
    state = gateway.http.get("/debug/state").json()
    assert set(state) == {service.value for service in Service}
    assert state["gateway"]["state"] == "ready"
    assert state["gateway"]["open_responses"] == 0
    assert state["scheduler"] is None


def test_the_state_is_for_operators_alone(gateway: Gateway) -> None:
    for key, status, code in (("nobody", 401, "invalid_api_key"), ("user", 403, "forbidden"), ("operator", 200, "")):
        response = gateway.http.get("/debug/state", headers={"authorization": f"Bearer {key}"})
        assert response.status_code == status
        assert status == 200 or response.json()["error"]["code"] == code


@pytest.mark.parametrize(
    ("tier", "expected"),
    [("auto", ""), ("default", ""), ("priority", "interactive"), ("flex", "batch"), ("nightly", "nightly")],
)
def test_service_tiers_name_classes(gateway: Gateway, tier: str, expected: str) -> None:
    gateway.http.post("/v1/chat/completions", json={**HI, "service_tier": tier})
    assert sent(gateway).traffic_class == expected


def test_times_to_live_come_from_headers_or_the_body(gateway: Gateway) -> None:
    gateway.http.post("/v1/chat/completions", json={**HI, "ttl_first_ms": 5, "ttl_ms": 70})
    gateway.http.post("/v1/chat/completions", json={**HI, "ttl_ms": 70}, headers={"x-noria-ttl-ms": "90"})
    times = [(each.ttl_first_ms, each.ttl_ms) for each in gateway.door.of(Generate)]
    assert times == [(5, 70), (None, 90)]
    refused = gateway.http.post("/v1/chat/completions", json=HI, headers={"x-noria-ttl-first-ms": "soon"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "X-Noria-TTL-First-Ms")


def test_an_idempotency_key_names_the_request_and_has_its_answer_kept(gateway: Gateway) -> None:
    headers = {"idempotency-key": "once", "x-request-id": "other"}
    first = gateway.http.post("/v1/chat/completions", json=HI, headers=headers)
    assert (sent(gateway).id, sent(gateway).keep) == ("once", True)
    assert first.headers["x-request-id"] == "once"


def test_a_refusal_says_when_to_come_back_to_the_millisecond(gateway: Gateway) -> None:
    gateway.door.script = refuse(Code.QUOTA, "enough", retry_after_ms=1500)
    response = gateway.http.post("/v1/chat/completions", json=HI)
    assert (response.headers["retry-after"], response.headers["retry-after-ms"]) == ("2", "1500")
    with pytest.raises(openai.RateLimitError):
        gateway.openai.chat.completions.create(model="fake", messages=HI["messages"])  # type: ignore[arg-type]


def test_a_preview_tells_the_predicted_course_or_the_refusal(gateway: Gateway) -> None:
    course = gateway.http.post("/v1/preview", json=HI, headers={"x-noria-class": "batch"}).json()
    assert course == {
        "admitted": True, "traffic_class": "batch", "prompt_tokens": 7, "expected_output_tokens": 16,
        "start_ms": 1.0, "first_token_ms": 2.0, "finish_ms": 3.0,
    }  # fmt: skip
    asked = gateway.door.of(Preview)[0].request
    assert asked.messages == (Message("user", "hi"),)
    usual = gateway.door.forecast
    gateway.door.forecast = lambda each: Forecast(
        each.request.id, False, "standard", code=Code.QUOTA, reason="no", retry_after_ms=9
    )
    refused = gateway.http.post("/v1/preview", json={"prompt": "x"})
    gateway.door.forecast = usual
    assert refused.json() == {
        "admitted": False, "traffic_class": "standard", "code": "quota", "reason": "no", "retry_after_ms": 9,
    }  # fmt: skip
    several = gateway.http.post("/v1/preview", json={"prompt": ["x", "y"]})
    assert (several.status_code, several.json()["error"]["param"]) == (400, "prompt")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("accepting", [False, True])
def test_a_closed_connection_cancels_the_request(gateway: Gateway, stream: bool, accepting: bool) -> None:
    gateway.door.script = endless if accepting else lambda door, mail: None
    connection = http.client.HTTPConnection("127.0.0.1", gateway.shell.port, timeout=60)
    connection.request("POST", "/v1/chat/completions", json.dumps({**HI, "stream": stream}))
    name = sent(gateway).id
    if stream and accepting:
        assert connection.getresponse().readline().startswith(b"id: ")
    assert connection.sock is None or connection.sock
    (connection.sock or connection).close()
    connection.close()
    assert gateway.door.wait_for(Cancel).body == Cancel(name)
    if accepting:
        gateway.door.wait_for(Acknowledge)
    until(lambda: gateway.shell.snapshot()["open_responses"] == 0)


def test_a_slow_reader_does_not_stop_the_others(gateway: Gateway) -> None:
    pieces, piece = 3000, "x" * 4000  # more than the kernel's buffers hold

    def script(door: FrontDoor, mail: Mail) -> None:
        if isinstance(mail.body, Generate) and mail.body.id == "slow":
            words(*[piece] * pieces)(door, mail)
        elif isinstance(mail.body, Generate):
            words("quick")(door, mail)

    gateway.door.script = script
    body = json.dumps({**HI, "stream": True}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-Request-Id: slow\r\nContent-Length: {len(body)}\r\n"
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        slow.settimeout(60)
        slow.connect(("127.0.0.1", gateway.shell.port))
        slow.sendall(f"{head}Connection: close\r\n\r\n".encode() + body)
        gateway.door.wait_for(Generate)
        for _ in range(3):
            assert gateway.http.post("/v1/chat/completions", json=HI).status_code == 200
        until(lambda: "slow" in {name for each in gateway.door.of(Acknowledge) for name in each.ids})
        assert gateway.shell.snapshot()["open_responses"] == 1
        with slow.makefile("rb") as reader:
            everything = reader.read()
    assert everything.count(b"x") >= pieces * len(piece)
    assert b"data: [DONE]" in everything[-100:]


def test_an_absent_admission_is_a_503(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path / "run")
    try:
        gateway.door.stop()
        response = gateway.http.get("/health")
        assert response.status_code == 503
        assert response.json()["missing"] == ["admission"]
    finally:
        gateway.close()


def start_process(folder: Path, port: int) -> "subprocess.Popen[str]":
    config = folder / "noria.json"
    config.write_bytes(
        msgspec.json.encode(
            {"http": {"address": f"127.0.0.1:{port}", "drain_timeout_s": 5}, "runtime": {"dir": str(folder / "run")}}
        )
    )
    command = [sys.executable, "-m", "noria.services.gateway", "--config", str(config)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NORIA_")}
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)


def test_a_stopping_gateway_finishes_open_responses_and_a_taken_port_is_named(tmp_path: Path) -> None:
    runtime = RuntimeSettings(dir=str(tmp_path / "run"))
    prepare_runtime_dir(runtime)

    def accepting(door: FrontDoor, mail: Mail) -> None:
        if isinstance(mail.body, Generate):
            door.accept(mail)

    with FrontDoor(public_mailbox(runtime), accepting) as door:
        taken = socket.create_server(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        refused = start_process(tmp_path, port)
        assert refused.stderr is not None
        assert f"127.0.0.1:{port}" in refused.stderr.read()
        assert refused.wait(30) == 2
        refused.stderr.close()
        taken.close()

        process = start_process(tmp_path, port)
        assert process.stderr is not None
        stopped = False
        try:
            until(lambda: (found := inspect(runtime, Service.GATEWAY, 0.2)) is not None and found.state is State.READY)
            url = f"http://127.0.0.1:{port}/v1/chat/completions"
            with (
                httpx.Client(timeout=60, trust_env=False) as client,
                client.stream("POST", url, json=STREAM) as response,
            ):
                mail = door.wait_for(Generate)
                lines = response.iter_lines()
                assert "assistant" in next(line for line in lines if line.startswith("data"))
                process.send_signal(signal.SIGTERM)
                until(lambda: not listens(port))
                door.say(mail.client, sent_by(mail), "the", " rest")
                door.finish(mail.client, sent_by(mail), 2)
                rest = "".join(lines)
            assert "rest" in rest
            assert rest.endswith("data: [DONE]")
            assert process.wait(30) == 0
            stopped = True
        finally:
            if not stopped:
                process.kill()
                process.wait(30)
            process.stderr.close()


def sent_by(mail: Mail) -> str:
    assert isinstance(mail.body, Generate)
    return mail.body.id


def listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_head_without_end_is_refused(gateway: Gateway) -> None:
    with socket.create_connection(("127.0.0.1", gateway.shell.port), timeout=60) as connection:
        with contextlib.suppress(ConnectionError):  # it may be closed while we still write
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"a" * HEAD_BYTES_MAX)
            connection.sendall(b"a" * 1_000_000)
        received = b""
        with contextlib.suppress(ConnectionError):
            while data := connection.recv(65_536):
                received += data
    assert received == b"" or received.startswith(b"HTTP/1.1 431 ")
    assert gateway.http.get("/health").status_code == 200


def test_a_head_that_does_not_come_closes_the_connection_and_a_late_body_does_not(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BoundedHttpProtocol, "head_s", 1.5)
    body = json.dumps(HI).encode()
    address = ("127.0.0.1", gateway.shell.port)
    with (
        socket.create_connection(address, timeout=60) as silent,
        socket.create_connection(address, timeout=60) as slow,
        socket.create_connection(address, timeout=60) as late,
    ):
        slow.sendall(b"GET /health HT")
        late.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body))
        assert silent.recv(1) == b""
        assert slow.recv(1) == b""
        late.sendall(body)
        assert late.recv(15) == b"HTTP/1.1 200 OK"
