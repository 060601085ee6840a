"""The options there are, read off the declarations in `config`, and what a text means for one of them.

Unknown names are refused with the nearest known one.
"""

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from noria.shared.config.config import Config
from noria.shared.config.tenants import CLASS_NAME, TENANT_NAME, ClassSettings, TenantSettings
from noria.shared.errors import UserError

VARIABLE_PREFIX: Final = "NORIA_"
# Sections that hold any number of named tables, [SECTION.NAME]; only a file can set them.
KEYED: Final[Mapping[str, tuple[type[ClassSettings] | type[TenantSettings], str]]] = {
    "classes": (ClassSettings, CLASS_NAME),
    "tenants": (TenantSettings, TENANT_NAME),
}

REMOVED: Final[Mapping[str, str]] = {
    "limits.request_id_characters_max": "a request id has at most 128 characters",
    "limits.stop_string_characters_max": "a stop string has at most 256 characters; limits.stop_strings_max bounds their number",
    "limits.stop_token_ids_max": "a request has at most 64 stop token ids",
    "runtime.restart_pause_max_s": "the longest pause before a start is 10 s; runtime.restart_pause_s is the first one",
    "scheduler.adoption_timeout_s": "a new scheduler waits 10 s for what the executor holds",
    "scheduler.stop_lookahead": "requests with stop strings are planned 4 tokens ahead of the detokenizer",
}
"""Options of earlier versions, by dotted path: what holds instead of them."""


class Option(msgspec.Struct, frozen=True):
    """One option as declared: where it lives, its type, flags, help and default.

    common: a variable of OpenTelemetry's that sets it where ours does not; "" for none.
    """

    section: str
    key: str
    type: Any
    flags: tuple[str, ...]
    help: str
    default: Any
    common: str = ""

    @property
    def path(self) -> str:
        """The dotted name used in errors."""
        return f"{self.section}.{self.key}"

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return variable_of(self.path)


def variable_of(path: str) -> str:
    """The environment variable of an option, from its dotted path."""
    return f"{VARIABLE_PREFIX}{path.replace('.', '_')}".upper()


def options() -> Iterator[Option]:
    """Yield every option in declaration order."""
    for section in msgspec.structs.fields(Config):
        if section.name in KEYED:
            continue
        hints = get_type_hints(section.type, include_extras=True)
        for field in msgspec.structs.fields(section.type):
            annotated = hints[field.name]
            meta = next(extra for extra in annotated.__metadata__ if isinstance(extra, Meta))
            default = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
            yield Option(
                section=section.name,
                key=field.name,
                type=get_args(annotated)[0],
                flags=tuple((meta.extra or {}).get("flags", ())),
                help=meta.description or "",
                default=default,
                common=(meta.extra or {}).get("variable", ""),
            )


def parse(option: Option, text: str, source: str) -> Any:
    """Turn text from a variable or flag into the option's type. Raises UserError naming the source."""
    kind = option.type
    try:
        if get_origin(kind) is tuple:
            return tuple(part.strip() for part in text.split(",") if part.strip())
        if get_origin(kind) is dict:
            return dict(part.strip().split("=", 1) for part in text.split(",") if part.strip())
        if type(None) in get_args(kind) and text.lower() in ("", "none", "auto"):
            return None
        return msgspec.convert(text, kind, strict=False)
    except (msgspec.ValidationError, ValueError) as error:
        raise UserError(f"{source}: {option.path}: {error}") from error


def check_names(content: Mapping[str, Any], source: str) -> None:
    """Hold what a file says against what there is. Raises UserError naming the source, the name and the nearest known."""
    known: dict[str, list[str]] = {}
    for option in options():
        known.setdefault(option.section, []).append(option.key)
    for section, values in content.items():
        if section not in known and section not in KEYED:
            raise UserError(f"{source}: unknown section [{section}]{nearest(section, [*known, *KEYED])}")
        if not isinstance(values, dict):
            raise UserError(f"{source}: {section} must be a section, written [{section}]")
        if section in KEYED:
            for name, table in values.items():
                _check_table(section, name, table, source)
            continue
        for key in values:
            refuse_removed(f"{section}.{key}", f"{source}: {section}.{key}")
            if key not in known[section]:
                raise UserError(f"{source}: unknown key {section}.{key}{nearest(key, known[section])}")


def refuse_removed(path: str, shown: str) -> None:
    """Raise UserError where an option is one of an earlier version. shown: where it was given, and by which name."""
    if path in REMOVED:
        raise UserError(f"{shown} is no option any more: {REMOVED[path]}; leave it out")


def _check_table(section: str, name: str, table: Any, source: str) -> None:
    kind, pattern = KEYED[section]
    path = f"{section}.{name}"
    if re.fullmatch(pattern, name) is None:
        raise UserError(f"{source}: {path}: a name here must match {pattern}")
    if not isinstance(table, dict):
        raise UserError(f"{source}: {path} must be a section, written [{path}]")
    known = [field.name for field in msgspec.structs.fields(kind)]
    for key, value in table.items():
        if key not in known:
            raise UserError(f"{source}: unknown key {path}.{key}{nearest(key, known)}")
        try:
            msgspec.convert({key: value}, kind)
        except msgspec.ValidationError as error:
            raise UserError(f"{source}: {path}.{key}: {str(error).partition(' - at ')[0]}") from error


def nearest(name: str, known: Mapping[str, Any] | list[str]) -> str:
    """How an error about an unknown name ends: with the nearest of the known ones, or with those."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else f"; known: {', '.join(list(known)[:20])}"
