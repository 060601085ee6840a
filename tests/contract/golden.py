"""Golden bytes: one file per message kind, with a full and a minimal example in hexadecimal, and its fields' names.

The names are there because bytes alone do not show that two fields of one type have changed places.

A changed file means a changed wire format, which running stacks and released clients would notice. After an intended
change: `python tests/contract/golden.py --write`.
"""

import enum
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import inspect

from noria.proto.base import Header
from noria.proto.wire import every_kind

FOLDER: Final = Path(__file__).parent / "golden"
KINDS: Final = (Header, *every_kind())


def example(kind: type[msgspec.Struct], *, full: bool) -> msgspec.Struct:
    """A message whose fields all differ from their defaults (full), or that has only those without one."""
    numbers = itertools.count(1)
    value = _value(inspect.type_info(kind), "", numbers, full)
    assert isinstance(value, kind)
    return value


def _bare(of: inspect.Type) -> inspect.Type:
    """A type without its annotations."""
    return of.type if isinstance(of, inspect.Metadata) else of


def _value(of: inspect.Type, name: str, numbers: Iterator[int], full: bool) -> Any:
    match _bare(of):
        case inspect.StructType(cls=cls, fields=fields):
            return cls(*(_value(field.type, field.name, numbers, full) for field in fields if full or field.required))
        case inspect.NamedTupleType(cls=cls, fields=fields):
            return cls(*(_value(field.type, field.name, numbers, full) for field in fields if full or field.required))
        case inspect.UnionType(types=types):
            return _value(next(one for one in types if not isinstance(one, inspect.NoneType)), name, numbers, full)
        case inspect.VarTupleType(item_type=item):
            return tuple(_value(item, name, numbers, full) for _ in range(2))
        case inspect.TupleType(item_types=items):
            return tuple(_value(item, name, numbers, full) for item in items)
        case inspect.EnumType(cls=cls):
            members: list[enum.Enum] = list(cls)
            return members[next(numbers) % len(members)]
        case inspect.BoolType():
            return True
        case inspect.IntType():
            return next(numbers)
        case inspect.FloatType():
            return next(numbers) + 0.5
        case inspect.StrType():
            return f"{name} {next(numbers)} é😀"
        case inspect.BytesType():
            return bytes([next(numbers) % 256, 0, 255])
        case _:
            raise NotImplementedError(f"no example for {of}")


def lines(kind: type[msgspec.Struct]) -> list[str]:
    """What the kind's golden file holds."""
    examples = [msgspec.msgpack.encode(example(kind, full=full)).hex() for full in (True, False)]
    return [*examples, names(inspect.type_info(kind))]


def names(of: inspect.Type) -> str:
    """The fields of a type in their order, those inside them in brackets; empty for plain values."""
    match _bare(of):
        case inspect.StructType(fields=fields) | inspect.NamedTupleType(fields=fields):
            return f"({','.join(field.name + names(field.type) for field in fields)})"
        case inspect.UnionType(types=types):
            return "".join(map(names, types))
        case inspect.VarTupleType(item_type=item):
            return names(item)
        case inspect.TupleType(item_types=items):
            return "".join(map(names, items))
        case _:
            return ""


def write() -> None:
    """Write every golden file and remove those of kinds that are gone."""
    FOLDER.mkdir(exist_ok=True)
    for path in FOLDER.glob("*.hex"):
        path.unlink()
    for kind in KINDS:
        (FOLDER / f"{kind.__name__}.hex").write_text("\n".join(lines(kind)) + "\n")


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    write()
