"""The import rules in pyproject.toml can fail, and forbid what they are meant to."""

import re
import tomllib
from pathlib import Path

from grimp import ImportGraph
from import_rules import OnlyContract

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CONTRACTS = PROJECT["tool"]["importlinter"]["contracts"]


def broken(*imports: tuple[str, str]) -> list[str]:
    graph = ImportGraph()
    graph.add_module("app.core")
    for importer, imported in imports:
        graph.add_import(importer=importer, imported=imported)
    contract = OnlyContract("name", {}, {"modules": ["app.core"], "allowed": ["typing", "app.proto"]})
    check = contract.check(graph, verbose=False)
    assert check.kept is not bool(check.metadata["broken"])
    return [line.partition(" (")[0] for line in check.metadata["broken"]]


def test_what_is_listed_and_what_lies_beside_it_may_be_imported() -> None:
    assert (
        broken(("app.core.one", "typing"), ("app.core.one", "app.core.two"), ("app.core.two", "app.proto.base")) == []
    )


def test_everything_else_breaks_the_contract_and_is_named() -> None:
    assert broken(
        ("app.core.one", "subprocess"), ("app.core", "app.service"), ("app.core.deep.one", "typing_other")
    ) == [
        "app.core -> app.service",
        "app.core.deep.one -> typing_other",
        "app.core.one -> subprocess",
    ]


def test_every_core_is_under_the_contract() -> None:
    cores = {f"noria.{'.'.join(folder.relative_to(ROOT).parts)}" for folder in (ROOT / "services").glob("*/core")}
    assert {module for each in CONTRACTS if each["type"] == "only" for module in each["modules"]} >= cores


def test_the_base_install_is_kept_free_of_everything_that_the_server_adds() -> None:
    (contract,) = (each for each in CONTRACTS if each["name"].startswith("the base install"))
    # opentelemetry-sdk and its exporters are one module to an import; the one of the extra `grpc` brings that module with it.
    extras = {re.split("[->]", each)[0] for each in PROJECT["project"]["optional-dependencies"]["server"]}
    assert extras | {"grpc"} == set(contract["forbidden_modules"])
