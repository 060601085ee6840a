"""`python tests/structure/report.py`: prints what the layout measures, package by package.

`--limits` prints the table of `test_structure.py` with today's values instead; `--names` adds the chains, the cycles, the
repeated class names and who writes which field; `--root FOLDER` measures another checkout.
"""

import argparse
import sys
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[1]))

from structure.measure import ROOT, Module, cycles, figures, graph, modules, options, repeated, writers

# Classes whose fields should have few writers, with their packages.
WATCHED: Final = tuple(
    ("services/scheduler", name)
    for name in (
        "Request",
        "RequestInput",
        "OutputProgress",
        "PlannedWork",
        "CacheUse",
        "Billing",
        "Suspicion",
        "RequestLife",
    )
)


def table(product: list[Module]) -> str:
    """The figures, one line for each package."""
    head = ("package", "modules", "largest folder", "", "chain", "layers", "cycles", "code lines")
    rows = [head]
    for name, own in figures(product).items():
        largest = max(own.folders, key=lambda each: own.folders[each])
        cyclic = f"{len(own.cycles)}+{len(own.room_cycles)}"
        counts = (own.modules, own.largest_folder, largest, len(own.chain), len(own.layers), cyclic, own.code)
        rows.append((name, *map(str, counts)))
    rows.append(
        ("all", str(sum(int(row[1]) for row in rows[1:])), *[""] * 5, str(sum(int(row[7]) for row in rows[1:])))
    )
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    variables, flags = options()
    lines += [
        "",
        f"class names that stand more than once: {len(repeated(product))}",
        f"groups of modules that import each other, over all packages: {len(cycles(graph(product)))}",
        f"options: {variables}, flags of `noria up`: {flags}",
    ]
    for package, name in WATCHED:
        fields, who, where = written(product, package, name)
        lines.append(f"{name} ({package}): {fields} fields, written by {who} modules, of {where} rooms")
    return "\n".join(lines)


def written(product: list[Module], package: str, name: str) -> tuple[int, int, int]:
    """How many fields a class has, how many modules write any, and in how many rooms these are (all in none are one)."""
    found = writers(product, package, name)
    who = set().union(*found.values())
    return len(found), len(who), len({each.room for each in product if each.path in who})


def names(product: list[Module]) -> str:
    """What is behind the figures."""
    lines = []
    for name, own in figures(product).items():
        lines += [f"{name}: chain {' > '.join(own.chain)}", f"{name}: layers {' > '.join(own.layers)}"]
        lines += [f"{name}: cycle of modules {' '.join(each)}" for each in own.cycles]
        lines += [f"{name}: cycle of rooms {' '.join(each)}" for each in own.room_cycles]
    lines += [f"{name}: {', '.join(places)}" for name, places in repeated(product).items()]
    for package, name in WATCHED:
        lines += [f"{name}.{field}: {', '.join(sorted(who))}" for field, who in writers(product, package, name).items()]
    return "\n".join(lines)


def limits(product: list[Module]) -> str:
    """The lines of the table in `test_structure.py`."""
    lines = [
        f'    "{name}": Limit({own.largest_folder}, {len(own.chain)}, {len(own.layers)}, {len(own.cycles)}, '
        f"{len(own.room_cycles)}, {own.code}),"
        for name, own in figures(product).items()
    ]
    return "\n".join(lines)


def main() -> None:
    """Print what is asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limits", action="store_true")
    parser.add_argument("--names", action="store_true")
    parser.add_argument("--root", type=Path, default=ROOT)
    chosen = parser.parse_args()
    product = modules(chosen.root)
    print(limits(product) if chosen.limits else table(product))
    if chosen.names:
        print(names(product))


if __name__ == "__main__":
    main()
