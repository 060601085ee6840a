"""What the layout of the product's sources measures, counted from the files alone: nothing is imported.

Imports count wherever they stand: at the top, under TYPE_CHECKING, inside functions. A *package* here is a service or one
of cli, client, proto, shared. A *room* is a folder directly under a package or under its `core/`, with all below it. Modules
that lie in no room (a service's shell, its configuration) add no layer, but arrows through them count as arrows between
rooms.
"""

import ast
import io
import tokenize
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
TOPS: Final = ("cli", "client", "proto", "services", "shared")
_EMPTY: Final = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.ENCODING,
}
_CHANGES: Final = frozenset(
    {"add", "append", "appendleft", "clear", "discard", "extend", "insert"}
    | {"pop", "popitem", "popleft", "remove", "setdefault", "sort", "update"}
)
Graph = Mapping[str, set[str]]


@dataclass(frozen=True)
class Module:
    """One file. path: from the repository's root, as `services/scheduler/core/request.py`."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """Its syntax."""
        return ast.parse(self.text)

    @property
    def name(self) -> str:
        """As it is imported, without `noria.`."""
        return ".".join(Path(self.path).with_suffix("").parts).removesuffix(".__init__")

    @property
    def folder(self) -> str:
        """The folder that it lies in."""
        return str(Path(self.path).parent)

    @property
    def package(self) -> str:
        """`services/NAME`, or the top folder."""
        parts = Path(self.path).parts
        return "/".join(parts[:2]) if parts[0] == "services" and len(parts) > 2 else parts[0]

    @property
    def room(self) -> str:
        """Its room within its package, `cuda` or `core/cache`; empty for modules in none."""
        inner = Path(self.path).relative_to(self.package).parts[:-1]
        if not inner or inner == ("core",):
            return ""
        return "/".join(inner[:2]) if inner[0] == "core" else inner[0]

    @property
    def classes(self) -> Iterator[ast.ClassDef]:
        """Every class in it, private and inner ones too."""
        return (node for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef))

    def code_lines(self) -> int:
        """Lines without blanks, comments, docstrings and imports."""
        lines: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if token.type not in _EMPTY:
                lines.update(range(token.start[0], token.end[0] + 1))
        blank = {number for number, line in enumerate(self.text.splitlines(), 1) if not line.strip()}
        for node in ast.walk(self.tree):
            said = (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            )
            if said or isinstance(node, (ast.Import, ast.ImportFrom)):
                assert isinstance(node, ast.stmt)
                lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        return len(lines - blank)

    def imports(self, known: set[str]) -> set[str]:
        """The known modules that it imports."""
        found: set[str] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                found |= {each.name.removeprefix("noria.") for each in node.names if each.name.startswith("noria.")}
            elif isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
                if node.module == "noria":
                    found |= {each.name for each in node.names}
                elif node.module.startswith("noria."):
                    source = node.module.removeprefix("noria.")
                    for each in node.names:
                        inner = f"{source}.{each.name}"
                        found.add(inner if inner in known else source)
            elif isinstance(node, ast.ImportFrom):
                raise ValueError(f"{self.path}:{node.lineno}: a relative import, which is not counted")
        return found & known - {self.name}


def modules(root: Path = ROOT) -> list[Module]:
    """All of the product."""
    paths = sorted(path for top in TOPS for path in (root / top).rglob("*.py"))
    return [Module(str(path.relative_to(root)), path.read_text()) for path in paths]


def graph(product: Iterable[Module]) -> dict[str, set[str]]:
    """Which module imports which."""
    product = list(product)
    known = {each.name for each in product}
    return {each.name: each.imports(known) for each in product}


def components(arrows: Graph) -> list[list[str]]:
    """Strongly connected components, what is imported before what imports it (Tarjan, 1972)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        order[node] = low[node] = len(order)
        stack.append(node)
        for other in sorted(arrows[node]):
            if other not in order:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], order[other])
        if low[node] == order[node]:
            index = stack.index(node)
            found.append(sorted(stack[index:]))
            del stack[index:]

    for node in sorted(arrows):
        if node not in order:
            visit(node)
    return found


def cycles(arrows: Graph) -> list[list[str]]:
    """Groups of nodes that import each other, directly or around."""
    return [each for each in components(arrows) if len(each) > 1]


def longest(arrows: Graph, weight: Callable[[str], int] = lambda node: 1) -> list[str]:
    """The heaviest chain of imports, from the top down; a cycle counts as all of its nodes."""
    best: dict[str, tuple[int, list[str]]] = {}
    for group in components(arrows):
        below = [best[other] for node in group for other in arrows[node] if other not in group]
        heaviest, chain = max(below, key=lambda each: each[0], default=(0, []))
        total = (heaviest + sum(map(weight, group)), [*group, *chain])
        best.update(dict.fromkeys(group, total))
    _, chain = max(best.values(), key=lambda each: each[0], default=(0, []))
    return [node for node in chain if weight(node)]


def rooms(product: Iterable[Module], arrows: Graph) -> dict[str, set[str]]:
    """The same arrows between rooms, and between modules in none, which keep their names with a leading dot."""
    place = {each.name: each.room or f".{each.name}" for each in product}
    found: dict[str, set[str]] = defaultdict(set)
    for node, others in arrows.items():
        found[place[node]] |= {place[other] for other in others} - {place[node]}
    return dict(found)


@dataclass(frozen=True)
class Figures:
    """A package's measures. chain, layers: the nodes themselves, so that a report can name them."""

    modules: int
    code: int
    folders: Mapping[str, int]
    chain: list[str]
    layers: list[str]
    cycles: list[list[str]]
    room_cycles: list[list[str]]

    @property
    def largest_folder(self) -> int:
        """Modules of the folder that has most."""
        return max(self.folders.values())


def figures(product: list[Module]) -> dict[str, Figures]:
    """The measures of each package."""
    packages: dict[str, list[Module]] = defaultdict(list)
    for each in product:
        if each.package != "services":
            packages[each.package].append(each)
    return {name: _figures(own) for name, own in sorted(packages.items())}


def _figures(own: list[Module]) -> Figures:
    arrows = graph(own)
    between = rooms(own, arrows)
    folders = Counter(each.folder for each in own if not each.path.endswith("__init__.py"))
    return Figures(
        modules=sum(folders.values()),
        code=sum(each.code_lines() for each in own),
        folders=folders,
        chain=longest(arrows),
        layers=longest(between, lambda node: not node.startswith(".")),
        cycles=cycles(arrows),
        room_cycles=[each for each in cycles(between) if any(not node.startswith(".") for node in each)],
    )


def repeated(product: Iterable[Module]) -> dict[str, list[str]]:
    """Class names that stand more than once, with where."""
    found: dict[str, list[str]] = defaultdict(list)
    for each in product:
        for node in each.classes:
            found[node.name].append(each.path)
    return {name: places for name, places in sorted(found.items()) if len(places) > 1}


def writers(product: Iterable[Module], package_name: str, name: str) -> dict[str, set[str]]:
    """For each field of a package's class its modules that write it: assign, delete, or change what it holds by a method.

    Sources do not say the type of every expression. What is annotated counts by its annotation, an attribute by those of
    fields called so in the package; any other name counts where the module imports the class, `self` in the class alone.
    """
    package = [each for each in product if each.package == package_name]
    ((home, owner),) = ((each, node) for each in package for node in each.classes if node.name == name)
    fields = {
        node.target.id for node in owner.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    attributes = _typed_attributes(package, name)
    found: dict[str, set[str]] = {field: set() for field in sorted(fields)}
    for each in package:
        for written in _written(each, name, attributes, is_home=each is home):
            if written in fields:
                found[written].add(each.path)
    return found


def _typed_attributes(package: Iterable[Module], name: str) -> set[str]:
    """Names of fields that are annotated with the class."""
    nodes = (node for each in package for cls in each.classes for node in cls.body)
    return {
        node.target.id
        for node in nodes
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and _names(node.annotation) == {name}
    }


def _names(annotation: ast.expr | None) -> set[str]:
    """The names in an annotation but None, quoted ones too."""
    if annotation is None:
        return set()
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        annotation = ast.parse(annotation.value, mode="eval").body
    return {node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)}


def _written(module: Module, name: str, attributes: set[str], *, is_home: bool) -> Iterator[str]:
    """Names of attributes that are written on what may be an object of the class."""
    imported = is_home or any(
        alias.name == name for node in ast.walk(module.tree) if isinstance(node, ast.ImportFrom) for alias in node.names
    )

    def walk(node: ast.AST, types: dict[str, bool], inside: bool) -> Iterator[str]:
        if isinstance(node, ast.ClassDef):
            inside = is_home and node.name == name
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            types = {**types, **{each.arg: name in _names(each.annotation) for each in arguments if each.annotation}}
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            types[node.target.id] = name in _names(node.annotation)
        for target in _targets(node):
            base = target.value
            if isinstance(base, ast.Name):
                ours = inside if base.id == "self" else types.get(base.id, imported)
            else:
                ours = isinstance(base, ast.Attribute) and base.attr in attributes
            if ours:
                yield target.attr
        for child in ast.iter_child_nodes(node):
            yield from walk(child, types, inside)

    yield from walk(module.tree, {}, False)


def _targets(node: ast.AST) -> Iterator[ast.Attribute]:
    """The attributes that a node writes."""
    match node:
        case ast.Assign(targets=targets) | ast.Delete(targets=targets):
            yield from (each for target in targets for each in _bare(target))
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target) | ast.For(target=target):
            yield from _bare(target)
        case ast.Call(func=ast.Attribute(value=ast.Attribute() as held, attr=method)) if method in _CHANGES:
            yield held
        case _:
            pass


def _bare(target: ast.expr) -> Iterator[ast.Attribute]:
    match target:
        case ast.Attribute():
            yield target
        case ast.Subscript(value=inner) | ast.Starred(value=inner):
            yield from _bare(inner)
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            yield from (each for part in parts for each in _bare(part))
        case _:
            pass


def options() -> tuple[int, int]:
    """How many keys the configuration has (those of a class or tenant once), and how many flags `noria up` has.

       Both as the kept lists say.
    tests/contract/test_known.py holds these lists equal to what the commands know.
    """
    known = ROOT / "tests" / "fixtures" / "known"
    lines = (known / "config.txt").read_text().splitlines()
    flags = [line for line in (known / "commands.txt").read_text().splitlines() if line.startswith("noria up -")]
    return sum(" NORIA_" in line or ".NAME." in line for line in lines), len(flags)
