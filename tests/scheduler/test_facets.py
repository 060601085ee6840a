"""Each facet of a request has one writer: a room of the core."""

import ast
from collections import defaultdict
from dataclasses import fields
from pathlib import Path

import pytest

from noria.services.scheduler.core.policy.fair_shares import FairBilling
from noria.services.scheduler.core.state.request import (
    Billing,
    CacheUse,
    OutputProgress,
    PlannedWork,
    Request,
    RequestInput,
    RequestLife,
    Suspicion,
)

CORE = Path(__file__).resolve().parents[2] / "services/scheduler/core"
FACETS = {
    "asked": (RequestInput, None),
    "progress": (OutputProgress, "handlers"),
    "work": (PlannedWork, "step"),
    "cache": (CacheUse, "state"),
    "billing": (FairBilling, "policy"),
    "suspicion": (Suspicion, "state"),
    "life": (RequestLife, "step"),
}
# Of a request itself: replaced by the policy, and where it is.
OWN = {"billing": "policy", "state": "step", "slot": "step"}


def facet_of(value: ast.expr, bound: dict[str, str]) -> str:
    """The facet that an expression is, `request.work` or a name for it."""
    if isinstance(value, ast.Attribute) and value.attr in FACETS and not _is_own(value.value):
        return value.attr
    return bound.get(value.id, "") if isinstance(value, ast.Name) else ""


def _is_own(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id in ("self", "state", "memory", "cache", "builder")


def names_of_facets(function: ast.AST) -> dict[str, str]:
    """Local names of facets in a function."""
    bound: dict[str, str] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                pairs = [(target, node.value)]
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = list(zip(target.elts, node.value.elts, strict=True))
                for name, value in pairs:
                    facet = facet_of(value, {})
                    if isinstance(name, ast.Name) and facet:
                        bound[name.id] = facet
    return bound


def written(source: str) -> set[tuple[str, str]]:
    """Facet and field of all that a module writes of requests; the facet is empty for a request's own fields."""
    found: set[tuple[str, str]] = set()
    for function in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)):
        bound = names_of_facets(function)
        for node in ast.walk(function):
            targets: list[ast.expr] = []
            if isinstance(node, ast.Assign):
                targets = [each for one in node.targets for each in (one.elts if isinstance(one, ast.Tuple) else [one])]
            elif isinstance(node, ast.AugAssign | ast.AnnAssign):
                targets = [node.target]
            elif (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in ("append", "extend")
            ):
                targets = [node.func.value]
            for target in targets:
                if not isinstance(target, ast.Attribute):
                    continue
                facet = facet_of(target.value, bound)
                if facet and target.attr in {each.name for each in fields(FACETS[facet][0])}:
                    found.add((facet, target.attr))
                elif target.attr in OWN and isinstance(target.value, ast.Name) and target.value.id == "request":
                    found.add(("", target.attr))
    return found


def writers() -> dict[tuple[str, str], set[str]]:
    """The rooms that write each field."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for path in CORE.rglob("*.py"):
        for field in written(path.read_text()):
            found[field].add(path.relative_to(CORE).parts[0])
    return found


def test_each_facet_is_written_by_its_room_alone() -> None:
    found = writers()
    assert len(found) > 25, "the search finds what is written"
    for (facet, field), rooms in found.items():
        assert rooms == {FACETS[facet][1] if facet else OWN[field]}, (facet, field)


@pytest.mark.parametrize(
    "line",
    [
        "request.work.length = 0",
        "work = request.work; work.outputs += 1",
        "use, work = request.cache, request.work; use.room = work.length = 0",
        "request.progress.output.append(1)",
        "request.state, other = RequestStatus.GONE, None",
    ],
)
def test_a_write_is_found_whatever_it_is_written_like(line: str) -> None:
    assert written(f"def move(request):\n    {line}\n")


def test_no_facet_has_more_fields_than_a_reader_can_keep_in_mind() -> None:
    for facet in (Request, Billing, *(each for each, _ in FACETS.values())):
        assert len(fields(facet)) <= 12, facet
