"""Who imports whom, read off the import statements: table and diagram of the page on architecture.

Run ``python imports.py`` in this directory: it prints the table and writes ../images/imports.svg.
Standard library only.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src" / "notsodeep"
DIAGRAM = Path(__file__).parents[1] / "images" / "imports.svg"
ORDER = [
    "numerics",
    "files",
    "cluster",
    "data",
    "activations",
    "models",
    "kernels",
    "equivalents",
    "networks",
    "kernel_solvers",
    "prediction",
    "matching",
    "collapse",
    "trained",
    "zoo",
    "estimators",
    "compilation",
    "plotting",
    "papers",
    "report",
    "explorer",
    "cli",
]
# Height of each part in the diagram; its column follows from what it imports.
ROWS = {
    "numerics": 0,
    "files": 2,
    "cluster": 3,
    "collapse": 4,
    "activations": 0,
    "data": 2,
    "models": 0,
    "equivalents": 0,
    "kernels": 1,
    "networks": 2,
    "kernel_solvers": 0,
    "matching": 1,
    "prediction": 0,
    "trained": 3,
    "zoo": 4,
    "estimators": 1,
    "compilation": 2,
    "plotting": 4,
    "papers": 3,
    "report": 3,
    "explorer": 3,
    "cli": 3,
}
WIDTH, HEIGHT, COLUMN, ROW = 104, 30, 132, 58  # of a box, and of the grid, in pixels


def imported(path: Path) -> set[str]:
    """Return the parts of the package that a file imports, inside functions too."""
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return {name.split(".")[1] for name in names if name.startswith("notsodeep.")}


def graph() -> dict[str, set[str]]:
    """Return what each part imports; what all of them do, such as `errors`, is left out."""
    found = {}
    for part in ORDER:
        files = (PACKAGE / part).rglob("*.py")
        found[part] = set().union(*(imported(path) for path in files)) & set(ORDER) - {part}
    return found


def table() -> str:
    """Return the table in Markdown, in the order of the data flow."""
    lines = ["| part | imports |", "|---|---|"]
    for part, found in graph().items():
        listed = ", ".join(f"`{name}`" for name in ORDER if name in found) or "–"
        lines.append(f"| `{part}` | {listed} |")
    return "\n".join(lines)


def behind(part: str, imports: dict[str, set[str]]) -> set[str]:
    """Return everything that a part imports, directly or not."""
    direct = imports[part]
    return direct.union(*(behind(other, imports) for other in direct))


def diagram() -> str:
    """Return the same as SVG: a part stands to the right of all that it imports.

    An arrow that follows from two others is left out.
    """
    imports = graph()
    depth: dict[str, int] = {}
    for part in ORDER:  # a part comes after what it imports
        depth[part] = 1 + max((depth[other] for other in imports[part]), default=-1)
    corner = {part: (8 + COLUMN * depth[part], 8 + ROW * ROWS[part]) for part in ORDER}
    width = 16 + COLUMN * max(depth.values()) + WIDTH
    height = 16 + ROW * max(ROWS.values()) + HEIGHT
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="white"/>',
        '<g fill="none" stroke="#8a8f98">',
    ]
    for part in ORDER:
        direct = imports[part]
        needed = direct - set().union(*(behind(other, imports) for other in direct))
        for other in sorted(needed, key=ORDER.index):
            (x0, y0), (x1, y1) = corner[other], corner[part]
            x0, y0, y1 = x0 + WIDTH, y0 + HEIGHT // 2, y1 + HEIGHT // 2
            bend = 18 + (x1 - x0) // 3
            lines.append(f'<path d="M{x0} {y0} C{x0 + bend} {y0} {x1 - bend} {y1} {x1 - 6} {y1}"/>')
            lines.append(f'<path d="M{x1 - 11} {y1 - 4} L{x1 - 4} {y1} L{x1 - 11} {y1 + 4}"/>')
    lines.append("</g>")
    for part in ORDER:
        x, y = corner[part]
        lines.append(
            f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="5" fill="#e8eef6" '
            f'stroke="#3b6ea8"/><text x="{x + WIDTH // 2}" y="{y + 20}" '
            f'text-anchor="middle">{part}</text>'
        )
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    sys.stdout.write(table() + "\n")
    DIAGRAM.write_text(diagram())
