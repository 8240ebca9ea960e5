"""Imports go one way, so that kernels, equivalents and networks stay independent witnesses."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import notsodeep

ROOT = Path(notsodeep.__file__).parent

FOUNDATION = {
    "arrays",
    "_files",
    "_runs",
    "errors",
    "checks",
    "extras",
    "records",
    "progress",
    "threads",
}
DESCRIPTIONS = {*FOUNDATION, "numerics", "data", "activations", "models"}
WITNESSES = {"kernels", "equivalents", "networks"}
SCIENCE = {
    *DESCRIPTIONS,
    *WITNESSES,
    "matching",
    "kernel_solvers",
    "collapse",
    "prediction",
}
PRODUCT = {*SCIENCE, "trained", "zoo", "estimators", "compilation"}

ALLOWED: dict[str, set[str]] = {
    "arrays": set(),
    "errors": set(),
    "_files": {"errors", "__init__"},
    "_runs": {"errors", "_files"},
    "checks": {"arrays", "errors"},
    "records": {"errors"},
    "extras": {"errors"},
    "progress": {"errors", "checks", "extras"},
    "threads": {"errors", "checks"},
    "numerics": FOUNDATION,
    "data": {*FOUNDATION, "numerics"},
    "activations": {*FOUNDATION, "numerics"},
    "models": {*FOUNDATION, "numerics", "data", "activations"},
    "kernels": DESCRIPTIONS,
    "equivalents": DESCRIPTIONS,
    "networks": DESCRIPTIONS,
    "matching": {*DESCRIPTIONS, *WITNESSES, "prediction"},
    "kernel_solvers": {*DESCRIPTIONS, "kernels", "equivalents"},
    "collapse": {*FOUNDATION, "numerics", "data"},
    "prediction": {*DESCRIPTIONS, "kernels", "equivalents", "kernel_solvers"},
    "trained": SCIENCE,
    "zoo": {*SCIENCE, "trained"},
    "estimators": SCIENCE,
    "compilation": {*SCIENCE, "trained", "estimators"},
    "plotting": PRODUCT,
    "report": {*PRODUCT, "plotting"},
    "explorer": {*PRODUCT, "plotting", "report"},
    "cli": {*PRODUCT, "plotting", "report", "explorer"},
    "__init__": {*PRODUCT, "plotting"},
    "__main__": {"errors", "cli"},
}


def part_of(module: str) -> str:
    pieces = module.split(".")
    return pieces[1] if len(pieces) > 1 else "__init__"


def imported_parts(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        modules: list[str] = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules = [node.module]
            if node.module == "notsodeep":
                modules = [f"notsodeep.{alias.name}" for alias in node.names]
        found |= {part_of(m) for m in modules if m.split(".")[0] == "notsodeep"}
    return found


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_one_way(path: Path) -> None:
    here = path.relative_to(ROOT).parts[0].removesuffix(".py")
    assert here in ALLOWED, f"{here} has no place in the import order; give it one"
    wrong = imported_parts(path) - ALLOWED[here] - {here, "__version__"}
    assert not wrong, f"{here} may not import {sorted(wrong)}"


def test_the_rule_can_fail(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("from notsodeep.kernels import blocks\nfrom notsodeep import networks\n")
    assert imported_parts(bad) == {"kernels", "networks"}
    assert imported_parts(bad) - ALLOWED["equivalents"] == {"kernels", "networks"}


def loaded_after(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint(*sys.modules)"
    output = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return set(output.stdout.split())


def test_import_is_light() -> None:
    loaded = loaded_after("import notsodeep")
    assert not loaded & {"numpy", "scipy", "torch", "numba", "matplotlib"}


def test_calculus_does_not_load_torch() -> None:
    loaded = loaded_after("import notsodeep as nsd; nsd.DeepEquilibrium('relu', 0.2).centred(1.0)")
    assert "numpy" in loaded
    assert "torch" not in loaded


def test_public_names_exist() -> None:
    for name in notsodeep.__all__:
        assert getattr(notsodeep, name) is not None
    assert set(notsodeep.__all__) <= set(dir(notsodeep))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = notsodeep.nonsense
