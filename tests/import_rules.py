"""A contract for import-linter: modules that may import what is listed, and nothing else.

A list of what is forbidden forgets the library that nobody thought of; purity is a list of what is allowed.
"""

from typing import Any

from grimp import ImportGraph
from importlinter.application import output
from importlinter.domain import fields
from importlinter.domain.contract import Contract, ContractCheck


class OnlyContract(Contract):
    """modules: they and what lies below them are checked. allowed: what they may import besides one another."""

    type_name = "only"

    modules = fields.SetField(subfield=fields.StringField())
    allowed = fields.SetField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Look at every direct import; what is allowed may do as it likes, other contracts see to that."""
        del verbose
        roots, allowed = _names(self.modules), _names(self.allowed)
        broken: list[str] = []
        for root in sorted(roots):
            if root not in graph.modules:
                raise ValueError(f"there is no module {root}")
            for module in sorted({root, *graph.find_descendants(root)}):
                for imported in sorted(graph.find_modules_directly_imported_by(module)):
                    if not _within(imported, {*roots, *allowed}):
                        lines = graph.get_import_details(importer=module, imported=imported)
                        broken.append(f"{module} -> {imported} (l.{lines[0]['line_number'] if lines else '?'})")
        return ContractCheck(kept=not broken, metadata={"broken": broken})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print the imports that are not allowed."""
        for line in check.metadata["broken"]:
            output.print_error(line, bold=False)


def _names(value: Any) -> set[str]:
    return {str(each) for each in value}


def _within(module: str, roots: set[str]) -> bool:
    return any(module == root or module.startswith(f"{root}.") for root in roots)
