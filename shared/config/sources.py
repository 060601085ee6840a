"""Where the configuration comes from: one TOML file, `NORIA_…` variables and flags, read once.

Later sources win: defaults, file, OpenTelemetry's variables, ours, flags. What options there are is said in `options`.
"""

import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from noria.shared.config.config import Config
from noria.shared.config.options import (
    KEYED,
    REMOVED,
    VARIABLE_PREFIX,
    Option,
    check_names,
    nearest,
    options,
    parse,
    refuse_removed,
    variable_of,
)
from noria.shared.config.policies import SHARING_POLICY
from noria.shared.config.sections.http import GATEWAY_GRACE_S_MAX
from noria.shared.config.tenants import BUILT_IN, ClassSettings, TenantSettings, allowed_classes
from noria.shared.errors import UserError

CONFIG_VARIABLE: Final = "NORIA_CONFIG"
# A sign of life may come late on a busy machine: in less time than this many heartbeats nobody can be taken for silent.
_HEARTBEATS: Final = 1.5
_OTHER_VARIABLES: Final = (CONFIG_VARIABLE, "NORIA_API_KEY")  # the latter is for the commands that ask


def load(
    path: str | os.PathLike[str] | None,
    flags: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Config:
    """Read the configuration once.

    path: a TOML file, or None for the one that NORIA_CONFIG names, if any. flags: values by dotted option path.
    Raises UserError naming the source and the key of what is wrong.
    """
    layers = _layers(path, flags, environment)
    merged: dict[str, dict[str, Any]] = {}
    for _, content in layers:
        _merge(merged, content)
    return _convert(merged, layers)


def origins(
    path: str | os.PathLike[str] | None,
    flags: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Say for each option that is not at its default which source set it, by dotted path: a file, variable or flag."""
    return {where: source for source, content in _layers(path, flags, environment) for where in _paths(content)}


_Layer = tuple[str, Mapping[str, Mapping[str, Any]]]


def _layers(
    path: str | os.PathLike[str] | None, flags: Mapping[str, Any] | None, environment: Mapping[str, str] | None
) -> list[_Layer]:
    """Read every source, the weakest first."""
    environment = os.environ if environment is None else environment
    layers: list[_Layer] = []
    source = path or environment.get(CONFIG_VARIABLE)
    if source:
        layers.append((str(source), _read_file(Path(source))))
    for variable, option, value in _read_environment(environment):
        layers.append((variable, {option.section: {option.key: value}}))
    declared = {option.path: option for option in options()}
    for name, value in (flags or {}).items():
        option = declared[name]
        layers.append((option.flags[0] if option.flags else name, {option.section: {option.key: value}}))
    return layers


def _paths(content: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for section, values in content.items():
        for key, value in values.items():
            if section in KEYED:
                yield from (f"{section}.{key}.{each}" for each in value)
            else:
                yield f"{section}.{key}"


def dump(config: Config) -> dict[str, Any]:
    """Return the effective configuration as plain values."""
    plain = msgspec.to_builtins(config)
    assert isinstance(plain, dict)
    return plain


def write(config: Config, path: Path) -> None:
    """Write the effective configuration for child processes, readable by the owner alone; replaced as a whole."""
    new = path.with_name(f".{path.name}.new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(config))
    os.replace(new, path)


def _read_file(path: Path) -> dict[str, Any]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read the configuration file {path}: {error.strerror}") from error
    try:
        content = msgspec.json.decode(data) if path.suffix == ".json" else tomllib.loads(data.decode())
    except (msgspec.DecodeError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid: {error}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} must hold sections")
    if isinstance(runtime := content.get("runtime"), dict) and runtime.get("supervised"):
        # Written by a supervisor, which may be of an earlier version and starts a service again all the same.
        for section, _, key in (each.partition(".") for each in REMOVED):
            if isinstance(values := content.get(section), dict):
                values.pop(key, None)
    check_names(content, str(path))
    return content


def _read_environment(environment: Mapping[str, str]) -> Iterator[tuple[str, Option, Any]]:
    """Variables with their options and values; those that are not ours first, so that ours win."""
    declared = {option.variable: option for option in options()}
    removed = {variable_of(path): path for path in REMOVED}
    for each in declared.values():
        if each.common and (text := environment.get(each.common)):
            yield each.common, each, parse(each, text, f"environment variable {each.common}")
    for name, text in environment.items():
        if not name.startswith(VARIABLE_PREFIX) or name in _OTHER_VARIABLES:
            continue
        option = declared.get(name)
        refuse_removed(removed.get(name, ""), f"environment variable {name}")
        if option is None:
            raise UserError(f"unknown environment variable {name}{nearest(name, declared)}")
        yield name, option, parse(option, text, f"environment variable {name}")


def _merge(into: dict[str, dict[str, Any]], new: Mapping[str, Mapping[str, Any]]) -> None:
    for section, values in new.items():
        into.setdefault(section, {}).update(values)


def _convert(content: Mapping[str, Any], layers: list[_Layer]) -> Config:
    built_in = msgspec.to_builtins(BUILT_IN)
    given = content.get("classes", {})
    classes = {name: {**built_in.get(name, {}), **given.get(name, {})} for name in (*built_in, *given)}
    content = {**content, "classes": classes}
    _check_tenants(content.get("tenants", {}), msgspec.convert(classes, dict[str, ClassSettings]), layers)
    try:
        config = msgspec.convert(content, Config)
    except msgspec.ValidationError as error:
        text = str(error)
        where = text.rpartition(" - at `$.")[2].rstrip("`") if " - at `$." in text else ""
        reason = text.partition(" - at ")[0]
        key = where.partition("[")[0]
        raise UserError(f"{_source(key, layers)}: {where + ': ' if where else ''}{reason}") from error
    _check_slots(config, layers)
    _check_times(config, layers)
    return config


def _source(path: str, layers: list[_Layer]) -> str:
    """Which source set an option."""
    return next((name for name, layer in reversed(layers) if path in _paths(layer)), "configuration")


def _check_slots(config: Config, layers: list[_Layer]) -> None:
    """Refuse what would leave a class without a place in any step, so that its requests would wait for ever."""
    if config.policy != SHARING_POLICY:
        return
    isolated = {name: each.reserved_slots for name, each in config.classes.items() if each.isolated}
    for name, slots in isolated.items():
        if slots == 0:
            path = f"classes.{name}.reserved_slots"
            raise UserError(
                f"{_source(path, layers)}: {path}: an isolated class has no other places in a step than those that it "
                "reserves; reserve at least 1"
            )
    slots, needed = config.scheduler.max_requests_per_batch, sum(isolated.values()) + 1
    if slots < needed:
        path = "scheduler.max_requests_per_batch"
        raise UserError(
            f"{_source(path, layers)}: {path}: of {slots} places in a step, isolated classes ({', '.join(isolated)}) "
            f"reserve {needed - 1}, which leaves none to the others; allow at least {needed}, or reserve fewer"
        )


def _check_times(config: Config, layers: list[_Layer]) -> None:
    """Refuse times by which a service that is well would be taken for hung or gone."""
    runtime = config.runtime
    least_s = _HEARTBEATS * runtime.heartbeat_s
    for key, seconds in (("hang_timeout_s", runtime.hang_timeout_s), ("peer_timeout_s", runtime.peer_timeout_s)):
        if seconds < least_s:
            path, other = f"runtime.{key}", "runtime.heartbeat_s"
            raise UserError(
                f"{_source_of(path, other, layers)}: {path}: {seconds:g} s is too short; with {other} = "
                f"{runtime.heartbeat_s:g} it must be at least {least_s:g} s"
            )
    path, other, least_s = "http.gateway_grace_s", "runtime.hang_timeout_s", config.least_gateway_grace_s
    if config.gateway_grace_s < least_s:
        raise UserError(
            f"{_source_of(path, other, layers)}: {path}: {config.gateway_grace_s:g} s is too short; with {other} = "
            f"{runtime.hang_timeout_s:g} it must be at least {least_s:g} s, which is {other} + "
            f"{runtime.longest_restart_pause_s:g} s until a dead service is started again + "
            "runtime.peer_timeout_s: until then a gateway that hangs may not have a successor"
        )
    if config.gateway_grace_s > GATEWAY_GRACE_S_MAX:
        raise UserError(
            f"{_source_of(other, path, layers)}: {other} + {runtime.longest_restart_pause_s:g} s + runtime.peer_timeout_s, which {path} "
            f"must not be below, are {least_s:g} s; it can be {GATEWAY_GRACE_S_MAX:g} s at most"
        )


def _source_of(path: str, other: str, layers: list[_Layer]) -> str:
    """Which source set one of two options that do not go together, the first of them if both were set."""
    return next((name for each in (path, other) for name, layer in reversed(layers) if each in _paths(layer)), "")


def _check_tenants(
    content: Mapping[str, Mapping[str, Any]], classes: dict[str, ClassSettings], layers: list[_Layer]
) -> None:
    """Refuse what no single value shows: classes that do not exist, and a key that is two tenants'."""
    owners: dict[str, str] = {}
    source = next((name for name, layer in layers if "tenants" in layer), "configuration")
    for name, values in content.items():
        tenant, path = msgspec.convert(values, TenantSettings), f"{source}: tenants.{name}"
        for each in (*tenant.classes, *filter(None, [tenant.default_class])):
            if each not in classes:
                key = "classes" if each in tenant.classes else "default_class"
                raise UserError(f"{path}.{key}: there is no class {each}{nearest(each, classes)}")
        if tenant.default_class and tenant.default_class not in allowed_classes(tenant, classes):
            raise UserError(f"{path}.default_class: {tenant.default_class} is not among the tenant's classes")
        if not allowed_classes(tenant, classes):
            raise UserError(f"{path}.classes: every class is isolated; name those that the tenant may use")
        for key in tenant.keys:
            if owners.setdefault(key, name) != name:
                raise UserError(f"{path}.keys: {key} belongs to tenants.{owners[key]} already")
