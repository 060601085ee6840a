"""Server-sent events as bytes."""

import json

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from noria.services.gateway.api.event_stream import encode_event

TEXTS = st.text(st.one_of(st.characters(codec="utf-8"), st.sampled_from("\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029")))


@given(text=TEXTS, position=st.sampled_from(["", "1.2"]))
def test_an_event_has_its_lines_however_a_client_splits_them(text: str, position: str) -> None:
    data = encode_event(msgspec.json.encode({"text": text}), position)
    lines = data.decode().splitlines()
    assert lines == data.decode().split("\n")[:-1]
    assert lines[-1] == ""
    assert lines[:-2] == ([f"id: {position}"] if position else [])
    assert json.loads(lines[-2].removeprefix("data: ")) == {"text": text}
