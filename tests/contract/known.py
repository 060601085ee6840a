"""What users, dashboards and files know Noria by, as lists of lines: one file of `tests/fixtures/known` for each list.

A changed file means that somebody's dashboard, script, configuration or client stops working. After an intended change,
which CHANGELOG tells as old -> new: `PYTHONPATH=tests python -m contract.known --write [NAME...]`, and look at the diff.
Without names all are written; `metrics`, `debug_state` and `answers` start a stack of a tiny model.

Metric, span and attribute names as they are declared stand in docs/telemetry.md, which is compared with the registry.
What is found by walking packages does not say in which module it was found: modules may move, names may not.
"""

import ast
import enum
import importlib
import inspect
import json
import os
import pkgutil
import re
import sys
import tempfile
import typing
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import click
import httpx
import msgspec
from click.testing import CliRunner
from e2e.harness import Stack, stack, wait_until
from fakes.tiny_model import build_tiny_model
from starlette.applications import Starlette

import noria.client
import noria.services.gateway
from noria.cli.app import noria as commands_group
from noria.proto.base import Header, Service
from noria.proto.wire import every_kind
from noria.services.gateway import app
from noria.services.gateway.config import gateway_config

FOLDER: Final = Path(__file__).parents[1] / "fixtures" / "known"
# Labels whose values depend on the configuration, or on when one looks.
OPEN_LABELS: Final = frozenset(
    {"class", "tenant", "model_name", "http_request_method", "http_route", "http_response_status_code"}
)
_SAMPLE: Final = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)")
_LABEL: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)",?')
_MODULE: Final = re.compile(r"\bnoria(\.[a-z_0-9]+)+\.")


def modules(package: ModuleType) -> Iterator[ModuleType]:
    """A package's own module and all that are in it, at any depth."""
    yield package
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not found.name.endswith("__main__"):
            yield importlib.import_module(found.name)


# ---- the command line and the configuration


def commands() -> list[str]:
    """Every command's options with all their names, types and defaults, and its arguments."""
    return list(_commands(commands_group, "noria"))


def _commands(command: click.Command, path: str) -> Iterator[str]:
    yield path
    for each in sorted(command.params, key=lambda param: str(param.name)):
        names = ", ".join([*each.opts, *each.secondary_opts])
        choices = (
            f"[{'|'.join(map(str, each.type.choices))}]" if isinstance(each.type, click.Choice) else each.type.name
        )
        flags = "".join(
            f" {word}"
            for word, holds in (
                ("required", each.required),
                ("multiple", getattr(each, "multiple", False)),
                ("switch", getattr(each, "is_flag", False)),
                ("hidden", getattr(each, "hidden", False)),
                (f"metavar {each.metavar}", each.metavar is not None),
                (
                    f"default {each.default!r}",
                    isinstance(each.default, (str, int, float)) and each.default is not False,
                ),
            )
            if holds
        )
        yield f"{path} {names}: {choices}{flags}"
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from _commands(inner, f"{path} {name}")


def config() -> list[str]:
    """What `noria config` prints where nothing is set: keys and defaults, with the variable that sets each."""
    clean: dict[str, str | None] = {name: None for name in os.environ if name.startswith(("NORIA_", "OTEL_"))}
    runner = CliRunner(env=clean)
    shown = json.loads(runner.invoke(commands_group, ["config", "--json"], catch_exceptions=False).stdout)
    lines = []
    for key, default in _leaves(shown["config"]):
        variable = "NORIA_" + key.upper().replace(".", "_")
        lines.append(f"{key} = {json.dumps(default)} {variable if _known(runner, variable) else 'no variable'}")
    lines += _keyed()
    lines += [f"also {name}" for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_PROTOCOL")]
    for name, text in (("ENDPOINT", "http://there:4318"), ("PROTOCOL", "grpc")):
        variable = f"OTEL_EXPORTER_OTLP_{name}"
        told = runner.invoke(commands_group, ["config"], env={variable: text}, catch_exceptions=False).stdout
        assert variable in told, f"{variable} is not read"
    return lines


def _keyed() -> Iterator[str]:
    """The keys of sections that hold one table for each name, as tenants do."""
    for section in msgspec.structs.fields(_config_type()):
        _, inner = typing.get_args(section.type) if typing.get_origin(section.type) is dict else (None, None)
        for field in msgspec.structs.fields(inner) if inner is not None else ():
            default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
            yield f"{section.encode_name}.NAME.{field.encode_name} = {default!r}"


def _known(runner: CliRunner, variable: str) -> bool:
    """Whether the variable is an option's: a value that no option has is refused in other words then."""
    try:
        runner.invoke(commands_group, ["config"], env={variable: "\N{SNOWMAN}"}, catch_exceptions=False)
    except Exception as error:
        return "unknown environment variable" not in str(error)
    return True


def _leaves(value: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, inner in value.items():
        if isinstance(inner, dict) and inner:
            yield from _leaves(inner, f"{path}{key}.")
        else:
            yield f"{path}{key}", inner


# ---- messages


def messages() -> list[str]:
    """Every struct, named tuple and enumeration that messages hold: fields in their order, with types and defaults."""
    kinds: set[type[Any]] = set()
    for kind in (Header, *every_kind()):
        _reached(msgspec.inspect.type_info(kind), kinds)
    lines = []
    for found in sorted(kinds, key=lambda each: each.__name__):
        if issubclass(found, msgspec.Struct):
            tag = found.__struct_config__.tag
            lines.append(found.__name__ + ("" if tag is None else f" tag {tag!r}"))
            fields = msgspec.structs.fields(found)
            lines += [f"  {each.encode_name}: {_plain(_bare(each.type))}{_default(each)}" for each in fields]
        elif issubclass(found, enum.Enum):
            lines.append(f"{found.__name__} enum")
            lines += [f"  {each.name} = {each.value!r}" for each in found]
        else:
            lines.append(f"{found.__name__} tuple")
            lines += [f"  {name}: {_plain(_bare(hint))}" for name, hint in typing.get_type_hints(found).items()]
    return lines


def _reached(of: msgspec.inspect.Type, found: set[type[Any]]) -> None:
    """Add the classes that a type is made of."""
    inner: tuple[msgspec.inspect.Type, ...] = ()
    match of:
        case (
            msgspec.inspect.StructType(cls=cls, fields=fields) | msgspec.inspect.NamedTupleType(cls=cls, fields=fields)
        ):
            if cls not in found:
                inner = tuple(each.type for each in fields)
            found.add(cls)
        case msgspec.inspect.EnumType(cls=cls):
            found.add(cls)
        case msgspec.inspect.UnionType(types=types):
            inner = types
        case msgspec.inspect.VarTupleType(item_type=item):
            inner = (item,)
        case msgspec.inspect.TupleType(item_types=items):
            inner = items
        case msgspec.inspect.Metadata(type=wrapped):
            inner = (wrapped,)
        case _:
            pass
    for each in inner:
        _reached(each, found)


def _bare(hint: Any) -> Any:
    """A type without what is said of it."""
    return typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Annotated else hint


def _default(field: msgspec.structs.FieldInfo) -> str:
    """A field's default; of a struct its name, since its fields stand at its own."""
    if field.default_factory is not msgspec.NODEFAULT:
        return f" = {field.default_factory.__name__}()"
    if isinstance(field.default, msgspec.Struct):
        return f" = {type(field.default).__name__}()"
    return "" if field.default is msgspec.NODEFAULT else f" = {field.default!r}"


def _classes(package: ModuleType) -> list[type[Any]]:
    """The classes made in a package, by name."""
    found = {
        each
        for module in modules(package)
        for each in vars(module).values()
        if inspect.isclass(each) and each.__module__ == module.__name__
    }
    return sorted(found, key=lambda each: each.__name__)


def _plain(value: object) -> str:
    """An annotation or default in words, without the modules in which its classes are."""
    return _MODULE.sub("", inspect.formatannotation(value) if not isinstance(value, str) else value)


# ---- the Python client


def client() -> list[str]:
    """All of `noria.client.__all__`: signatures of functions, classes and their public methods, fields and members."""
    lines = []
    for name in noria.client.__all__:
        found = getattr(noria.client, name)
        if inspect.isclass(found) and issubclass(found, enum.Enum):
            lines.append(f"{name} enum")
            lines += [f"{name}.{each.name} = {each.value!r}" for each in found]
            continue
        bases = ", ".join(each.__name__ for each in found.__bases__)
        lines.append(f"{name}({bases}){_signature(found)}")
        lines += [f"{name} options {each}" for each in _options(found)]
        for member in sorted(_public(found)):
            value = inspect.getattr_static(found, member)
            if isinstance(value, (staticmethod, classmethod)):
                lines.append(f"{name}.{member}{_signature(value.__func__)} {type(value).__name__}")
            elif inspect.isfunction(value):
                kind = "async " if inspect.iscoroutinefunction(value) or inspect.isasyncgenfunction(value) else ""
                lines.append(f"{kind}{name}.{member}{_signature(value)}")
            else:
                lines.append(f"{name}.{member}")
    return lines


def _public(found: type[Any]) -> set[str]:
    """Names of a class that users may use: its own and inherited from us, and the special methods that `with`, `for` use."""
    special = {"__enter__", "__exit__", "__aenter__", "__aexit__", "__iter__", "__next__", "__aiter__", "__anext__"}
    ours = [each for each in found.__mro__ if each.__module__.startswith("noria.")]
    names = {name for each in ours for name in vars(each) if not name.startswith("_") or name in special}
    return names | {name for each in ours for name in inspect.get_annotations(each) if name[0] != "_"}


def _options(found: type[Any]) -> list[str]:
    """The keyword options that a class's methods take, which their signatures only name as a whole."""
    lines = set()
    for method in (each for name, each in vars(found).items() if name[0] != "_" and inspect.isfunction(each)):
        for parameter in inspect.signature(method).parameters.values():
            for taken in typing.get_args(parameter.annotation):
                if typing.is_typeddict(taken):
                    hints = typing.get_type_hints(taken).items()
                    lines |= {f"{name}: {_plain(hint)}" for name, hint in hints}
    return sorted(lines)


def _signature(found: Any) -> str:
    try:
        return re.sub(r"(\*\*\w+): [^,)]*", r"\1", _MODULE.sub("", str(inspect.signature(found))))
    except ValueError:
        return ""


# ---- HTTP


def http() -> list[str]:
    """Routes with their methods, parameters of the two generation endpoints, headers and query words, error codes."""
    lines = []
    for route in _routes():
        methods = getattr(route, "methods", None)
        lines.append(f"route {route.path} {','.join(sorted(methods)) if methods else 'any method'}")
    bodies = {"chat": {"messages", "max_completion_tokens"}, "text": {"prompt", "echo"}}
    structs = [each for each in _classes(noria.services.gateway) if issubclass(each, msgspec.Struct)]
    for name, has in bodies.items():
        (body,) = (each for each in structs if has <= set(each.__struct_fields__))
        lines += sorted(
            f"{name} parameter {field.encode_name}: {_plain(field.type)}" for field in msgspec.structs.fields(body)
        )
    texts, codes, queries = _constants(Path(noria.services.gateway.__path__[0]))
    lines += [f"header {each}" for each in sorted(texts)]
    lines += [f"query {each}" for each in sorted(queries)]
    lines += [f"error code {each}" for each in sorted(codes)]
    return lines


def _routes() -> list[Any]:
    """The routes of the real application; nobody calls them here."""

    class Nobody:
        """Stands for what the endpoints ask when they are called."""

        def add(self, source: object) -> None:
            """Take a source of metrics, as telemetry does."""

        open = 0
        leaving = draining = False

    nobody: Any = Nobody()
    application: Any = app.build(nobody, gateway_config(_config_type()()), nobody, nobody)
    (starlette,) = (each for each in vars(application).values() if isinstance(each, Starlette))
    return list(starlette.routes)


def _config_type() -> Any:
    """The whole configuration's class, wherever it is."""
    return inspect.get_annotations(gateway_config, eval_str=True)["config"]


def _constants(folder: Path) -> tuple[set[str], set[str], set[str]]:
    """From the gateway's sources: names of headers, `code=` of errors, and words of queries."""
    headers, codes, queries = set(), set(), set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Constant(value=str(text)) if re.fullmatch(r"(?i)x-[a-z-]+|last-event-id|traceparent", text):
                    headers.add(text.lower())
                case ast.Call(
                    func=ast.Attribute(value=ast.Attribute(attr="query_params")), args=[ast.Constant(value=name), *_]
                ):
                    queries.add(str(name))
                case ast.keyword(arg="code", value=ast.Constant(value=str(code))):
                    codes.add(code)
    return headers, codes, queries


# ---- a running stack


class Seen:
    """What a stack of a tiny model says of itself after a little traffic."""

    def __init__(self, running: Stack) -> None:
        self.answers = traffic(running)
        running.wait_idle()
        self.page = ""
        wait_until(lambda: self._whole(httpx.get(f"{running.url}/metrics", timeout=60).text), 60, "all tell metrics")
        self.state = running.state()

    def _whole(self, page: str) -> bool:
        """Keep the page; whether every process is on it and the counts of all that was asked have come."""
        self.page = page
        told = {match[1] for match in re.finditer(r'noria_process_start_seconds\{service="([a-z]+)"', page)}
        return told == {each.value for each in Service} and "noria_requests_refused_total{" in page

    def metrics(self) -> list[str]:
        """Every metric's name, type, help and labels, with the values of labels that are closed sets."""
        return exposed(self.page)

    def debug_state(self) -> list[str]:
        """The keys of every service, at all depths."""
        return sorted(set(_keys(self.state)))

    def answer_keys(self) -> list[str]:
        """The keys of HTTP answers, at all depths."""
        return sorted({f"{name} {key}" for name, answer in self.answers.items() for key in _keys(answer)})


def traffic(running: Stack) -> dict[str, Any]:
    """One request of each kind; the JSON that came, by what was asked."""
    found: dict[str, Any] = {}
    chat = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    text = {"prompt": "hello", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    more = {"stream": True, "stream_options": {"include_usage": True}}
    with httpx.Client(base_url=running.url, timeout=120) as http_client:

        def post(name: str, path: str, body: dict[str, Any]) -> None:
            found[name] = http_client.post(path, json=body).json()

        def stream(name: str, path: str, body: dict[str, Any]) -> None:
            lines = http_client.post(path, json={**body, **more}).text.splitlines()
            found[name] = [json.loads(each[6:]) for each in lines if each.startswith("data: {")]

        post("chat", "/v1/chat/completions", {**chat, "logprobs": True, "top_logprobs": 2, "n": 2})
        post("text", "/v1/completions", {**text, "logprobs": 2})
        stream("chat stream", "/v1/chat/completions", {**chat, "logprobs": True, "top_logprobs": 2})
        stream("text stream", "/v1/completions", text)
        # The token that is forced ends it, so that both reasons for an end are seen whatever the kernels round.
        post(
            "stopped", "/v1/completions", {**text, "ignore_eos": False, "logit_bias": {"9": 100}, "stop_token_ids": [9]}
        )
        post("refused", "/v1/completions", {**text, "max_tokens": -1})
        post("preview", "/v1/preview", text)
        for path in ("/v1/models", "/health", "/ready"):
            found[path] = http_client.get(path).json()
        found["unknown"] = http_client.get("/nowhere").json()
    return found


def exposed(page: str) -> list[str]:
    """The lines of a Prometheus page without its numbers, sorted by name."""
    heads: dict[str, dict[str, str]] = defaultdict(dict)
    labels: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for line in page.splitlines():
        if line.startswith("# "):
            _, kind, name, text = line.split(" ", 3)
            heads[name][kind] = text
            continue
        match = _SAMPLE.fullmatch(line)
        assert match is not None, line
        labels[match[1]]  # one without labels counts too
        for name, value in _LABEL.findall(match[2] or ""):
            labels[match[1]][name].add("any" if name in OPEN_LABELS else value)
    lines = [f"metric {name} {head['TYPE']}: {head['HELP']}" for name, head in heads.items()]
    for name, given in labels.items():
        lines.append(f"sample {name}{{{','.join(given)}}}")
        lines += [f"sample {name} {label} {'|'.join(sorted(values))}" for label, values in given.items()]
    return sorted(lines)


def _keys(value: object, path: str = "") -> Iterator[str]:
    match value:
        case dict() if path.endswith("top_logprobs[]"):
            yield f"{path}.TOKEN"  # its keys are texts
        case dict():
            for key, inner in value.items():
                yield f"{path}.{key}"
                yield from _keys(inner, f"{path}.{key}")
        case list():
            for inner in value:
                yield from _keys(inner, f"{path}[]")
        case _:
            pass


def look(folder: Path) -> Seen:
    """Start a stack of a tiny model, ask it a little, and look."""
    with stack(str(build_tiny_model(folder / "tiny")), "--dtype", "float32") as running:
        return Seen(running)


QUIET: Final[dict[str, Callable[[], list[str]]]] = {
    "client": client, "commands": commands, "config": config, "http": http, "messages": messages
}  # fmt: skip
STACKED: Final[dict[str, Callable[[Seen], list[str]]]] = {
    "answers": Seen.answer_keys, "debug_state": Seen.debug_state, "metrics": Seen.metrics
}  # fmt: skip


def known(name: str) -> list[str]:
    """The lines of a list as they are kept."""
    return (FOLDER / f"{name}.txt").read_text().splitlines()


def write(names: list[str]) -> None:
    """Write the lists named, or all."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    chosen = names or [*QUIET, *STACKED]
    lists = {name: QUIET[name]() for name in chosen if name in QUIET}
    if set(chosen) & set(STACKED):
        with tempfile.TemporaryDirectory() as folder:
            seen = look(Path(folder))
        lists |= {name: STACKED[name](seen) for name in chosen if name in STACKED}
    for name, lines in lists.items():
        (FOLDER / f"{name}.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] != ["--write"] or not set(sys.argv[2:]) <= {*QUIET, *STACKED}:
        sys.exit(__doc__)
    write(sys.argv[2:])
