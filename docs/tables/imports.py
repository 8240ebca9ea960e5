"""The table "who imports whom" of the page on architecture, read off the import statements.

Run ``python imports.py`` in this directory; standard library only.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src" / "notsodeep"
ORDER = [
    "numerics",
    "execution",
    "data",
    "activations",
    "architectures",
    "kernels",
    "equivalents",
    "networks",
    "matching",
    "solvers",
    "collapse",
    "estimators",
    "experiments",
    "report",
    "app",
    "cli",
]


def imported(path: Path) -> set[str]:
    """Return the parts of the package that a file imports, inside functions too."""
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return {name.split(".")[1] for name in names if name.startswith("notsodeep.")}


def table() -> str:
    """Return the table in Markdown, in the order of the data flow."""
    lines = ["| part | imports |", "|---|---|"]
    for part in ORDER:
        files = (PACKAGE / part).rglob("*.py")
        found = set().union(*(imported(path) for path in files)) - {part}
        listed = ", ".join(f"`{name}`" for name in ORDER if name in found) or "–"
        lines.append(f"| `{part}` | {listed} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(table() + "\n")
