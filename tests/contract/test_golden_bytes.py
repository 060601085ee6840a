"""Each message has the bytes it had, and other versions of a decoder can read it."""

from typing import Any

import msgspec
import pytest
from contract.golden import FOLDER, KINDS, example, lines
from msgspec import inspect

from noria.proto.base import Header
from noria.proto.lifecycle import Hello, State
from noria.proto.wire import every_kind

Kind = type[msgspec.Struct]
RETIRED = {"Copied"}
each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


@each_kind
def test_a_message_has_the_bytes_it_always_had(kind: Kind) -> None:
    recorded = (FOLDER / f"{kind.__name__}.hex").read_text().split()
    assert lines(kind) == recorded, "the wire format changed; see tests/contract/golden.py"


@each_kind
def test_recorded_bytes_are_read_as_the_message(kind: Kind) -> None:
    recorded = (FOLDER / f"{kind.__name__}.hex").read_text().split()[:2]
    for full, line in zip((True, False), recorded, strict=True):
        assert msgspec.msgpack.decode(bytes.fromhex(line), type=kind) == example(kind, full=full)


def test_a_greeting_of_version_0_1_0_has_the_first_wire_format() -> None:
    for line, answer in (("9301a8647261696e696e67c3", True), ("9301a8647261696e696e67c2", False)):
        greeting = msgspec.msgpack.decode(bytes.fromhex(line), type=Hello)
        assert greeting == Hello(1, State.DRAINING, answer, 1)


def test_no_kind_lacks_its_bytes_and_no_bytes_their_kind() -> None:
    assert {path.stem for path in FOLDER.glob("*.hex")} == {kind.__name__ for kind in KINDS}


def test_no_two_kinds_share_a_name() -> None:
    assert len({kind.__name__ for kind in KINDS}) == len(KINDS)


def test_the_name_of_a_deleted_kind_is_never_used_again() -> None:
    assert not {kind.__name__ for kind in KINDS} & RETIRED


@each_kind
def test_an_older_decoder_ignores_fields_appended_since(kind: Kind) -> None:
    plain = msgspec.msgpack.decode(msgspec.msgpack.encode(example(kind, full=True)))
    longer = _with_surplus(plain, inspect.type_info(kind))
    assert longer != plain
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(longer), type=kind) == example(kind, full=True)


@each_kind
def test_a_newer_decoder_fills_in_fields_that_were_not_there_yet(kind: Kind) -> None:
    fields = msgspec.structs.fields(kind)
    required = sum(field.required for field in fields)
    assert all(field.required for field in fields[:required]), "a field without a default follows one with a default"
    plain = msgspec.msgpack.decode(msgspec.msgpack.encode(example(kind, full=True)))
    for count in range(required, len(fields)):
        message = msgspec.msgpack.decode(msgspec.msgpack.encode(plain[:count]), type=kind)
        whole = example(kind, full=True)
        for position, field in enumerate(fields):
            expected = getattr(whole, field.name) if position < count else _default(field)
            assert getattr(message, field.name) == expected


@each_kind
def test_a_message_is_an_array_and_frozen(kind: Kind) -> None:
    config = kind.__struct_config__
    assert config.array_like and config.frozen and not config.gc and not config.forbid_unknown_fields


def test_every_message_can_grow_everywhere() -> None:
    """Named tuples refuse surplus fields: only a stream's name, which never grows, may be one."""
    for kind in (*every_kind(), Header):
        assert set(_named_tuples(inspect.type_info(kind))) <= {"Stream"}, kind


def _default(field: msgspec.structs.FieldInfo) -> Any:
    return field.default if field.default is not msgspec.NODEFAULT else field.default_factory()


def _with_surplus(plain: Any, of: inspect.Type) -> Any:
    """The message as a later version might send it: every struct in it longer by two fields."""
    match of:
        case inspect.StructType(fields=fields):
            known = [_with_surplus(value, field.type) for value, field in zip(plain, fields, strict=True)]
            return [*known, "appended later", {"nested": [1]}]
        case inspect.NamedTupleType(fields=fields):
            return [_with_surplus(value, field.type) for value, field in zip(plain, fields, strict=True)]
        case inspect.VarTupleType(item_type=item):
            return [_with_surplus(value, item) for value in plain]
        case inspect.UnionType(types=types):
            return _with_surplus(plain, next(one for one in types if not isinstance(one, inspect.NoneType)))
        case _:
            return plain


def _named_tuples(of: inspect.Type) -> list[str]:
    match of:
        case inspect.NamedTupleType(cls=cls):
            return [cls.__name__]
        case inspect.StructType(fields=fields):
            return [name for field in fields for name in _named_tuples(field.type)]
        case inspect.VarTupleType(item_type=item):
            return _named_tuples(item)
        case inspect.UnionType(types=types):
            return [name for one in types for name in _named_tuples(one)]
        case _:
            return []
