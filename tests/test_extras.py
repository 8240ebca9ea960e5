"""What works without the optional packages, and what is said where one of them is needed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

import notsodeep as nsd
from notsodeep import extras
from notsodeep.errors import MissingPackage

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Beside the extras, what a full installation brings and the core does without.
ABSENT = {
    *extras._EXTRA_OF,
    "PIL",
    "click",
    "filelock",
    "joblib",
    "pandas",
    "safetensors",
    "sklearn",
}


def python(
    code: str, *arguments: str, hidden: set[str] = ABSENT, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run code in a process in which the optional packages cannot be found."""
    absent = textwrap.dedent(f"""
        import sys
        from importlib.machinery import PathFinder

        class Finder(PathFinder):
            @classmethod
            def find_spec(cls, name, path=None, target=None):
                absent = name.split(".")[0] in {sorted(hidden)}
                return None if absent else super().find_spec(name, path, target)

        sys.meta_path = [Finder if finder is PathFinder else finder for finder in sys.meta_path]
    """)
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", absent + textwrap.dedent(code), *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
    )


def test_the_core_works_alone() -> None:
    result = python("""
        import numpy as np
        import notsodeep as nsd

        deq = nsd.DeepEquilibrium("tanh", sigma_a2=0.2)
        mixture = nsd.data.paper_mixture(dimension=40)
        X, y = mixture.sample(60, rng=0)
        stats = mixture.statistics(X, y)
        centred = deq.centred(stats.tau0)
        K = nsd.kernel(centred, X)
        assert K.shape == nsd.kernel(centred, X, kind="ntk").shape == (60, 60)
        comparison = nsd.compare(K, nsd.equivalent(centred, X, y, mixture))
        assert 0 < comparison.relative_gap < 0.1
        found = nsd.match(deq, X, family="hard_tanh", refine=True)
        certificate = found.certify(*mixture.sample(30, rng=1))
        assert certificate.matched.relative_gap < 0.1 * certificate.unmatched.relative_gap
        assert "at the best scale" in str(certificate)
        solution = nsd.kernel_solvers.solve(nsd.KernelOperator(centred, X), y, ridge=0.1)
        assert solution.converged
        assert nsd.collapse.simplex_etf(3, 4, rng=0).shape == (3, 4)
        print(*sorted({name.split(".")[0] for name in sys.modules}))
    """)
    assert result.returncode == 0, result.stderr
    assert not ABSENT & set(result.stdout.split())


_COMPILE = """
    import json, sys
    import numpy as np
    import notsodeep as nsd

    rng = np.random.default_rng(0)
    y = np.arange(200) % 4
    X = (rng.normal(size=(200, 20)) + 2.0 * np.eye(4, 20)[y]) / 5.0
    options = {"family": "leaky_relu", "refine": False, "width": 64, "seeds": 3}
    compiled = nsd.compile(nsd.DeepEquilibrium("relu", 0.2), X, y, **options)
"""


def test_read_outs_are_compiled_without_torch_to_the_same_numbers(tmp_path: Path) -> None:
    code = (
        _COMPILE
        + """
    compiled.save(sys.argv[1])
    again = nsd.load(sys.argv[1])
    assert again.to_dict() == json.loads(json.dumps(compiled.to_dict()))
    for each in (compiled, again):
        try:
            each.network
        except nsd.errors.MissingPackage as error:
            assert "The network as a torch module needs the package torch" in str(error)
        else:
            raise AssertionError
    assert compiled.front.library == "numpy"
    print(json.dumps(compiled.accuracy.draws))
    """
    )
    result = python(code, str(tmp_path / "run"), hidden={"torch"})
    assert result.returncode == 0, result.stderr
    space: dict[str, Any] = {}
    exec(textwrap.dedent(_COMPILE), space)
    ours = space["compiled"]
    assert {k: tuple(v) for k, v in json.loads(result.stdout).items()} == ours.accuracy.draws
    assert min(ours.accuracy.mean.values()) > 0.6
    # What was written without torch is read with it, and is the same network.
    net, X = nsd.load(tmp_path / "run").network, torch.ones(2, 20)
    torch.testing.assert_close(net(X), ours.network(X), atol=1e-5, rtol=1e-4)
    assert net.classes == ours.network.classes


def test_what_is_missing_is_named_with_the_command(tmp_path: Path) -> None:
    wanted = {
        "nsd.build(deq, 4, 8, 2, rng=0)": ("torch", "torch"),
        "nsd.compile(deq, np.eye(80), np.arange(80) % 2, train='all')": ("torch", "torch"),
        "nsd.networks.Network": ("torch", "torch"),
        "nsd.load('network.safetensors')": ("torch", "torch"),
        "nsd.store_kernel('k.zarr', deq, np.eye(4))": ("zarr", "store"),
        "nsd.plotting.new_figure(1)": ("matplotlib", "plot"),
        "import notsodeep.report": ("jinja2 and matplotlib", "cli,plot"),
        "import notsodeep.cli": ("rich and typer", "cli"),
        "import notsodeep.collapse.torchmetrics_wrapper": (
            "torch and torchmetrics",
            "torch,torchmetrics",
        ),
    }
    result = python(
        f"""
        import numpy as np
        import notsodeep as nsd

        deq = nsd.DeepEquilibrium("relu", 0.2)
        for call in {list(wanted)}:
            try:
                exec(call)
            except nsd.errors.MissingPackage as error:
                print(error)
            else:
                print(call, "works")
    """,
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stderr
    assert list(tmp_path.iterdir()) == []
    lines = result.stdout.splitlines()
    for line, (packages, extra) in zip(lines, wanted.values(), strict=True):
        assert re.search(rf" needs the packages? {packages}, which (is|are) not", line)
        assert line.endswith(f"with: pip install -e '{ROOT}[{extra}]'")


def test_the_command_line_says_so_in_one_line() -> None:
    result = python("from notsodeep.__main__ import main; main()", "kernel")
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr == (
        "error: The command line needs the packages rich and typer, which are not installed. "
        f"Get them with: pip install -e '{ROOT}[cli]'\n"
    )


def test_away_from_a_checkout_the_package_has_its_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(extras, "_ROOT", tmp_path)
    message = str(extras.missing("This", "torchmetrics"))
    assert message.endswith("with: pip install 'notsodeep[torchmetrics]'")


def test_a_command_that_needs_more_says_so_too(tmp_path: Path) -> None:
    code = "from notsodeep.__main__ import main; main()"
    out = tmp_path / "run"
    for more in (["--train", "all"], ["--zoo", "tanh-digits-64"]):
        result = python(code, "compile", *more, "--out", str(out), hidden={"torch"})
        assert result.returncode == 1
        assert result.stderr.count("\n") == 1
        assert result.stderr.startswith("error: notsodeep compile needs the package torch, which")
        assert not out.exists()


def test_the_main_command_works_without_torch(tmp_path: Path) -> None:
    code = "from notsodeep.__main__ import main; main()"
    small = "--samples 150 --test-samples 40 --width 32 --seeds 2 --family leaky_relu --no-refine"
    out = tmp_path / "run"
    result = python(code, "compile", *small.split(), "--out", str(out), hidden={"torch"})
    assert result.returncode == 0, result.stderr
    assert "network.safetensors: not written. It needs the package torch" in result.stdout
    assert (out / "report.html").exists()
    assert not (out / "network.onnx").exists()
    assert "network.onnx: not written" in result.stdout


def test_imports_that_fail_elsewhere_are_explained() -> None:
    inner = ModuleNotFoundError("No module named 'torch.nn'", name="torch.nn")
    assert isinstance(extras.explained(inner), MissingPackage)
    other = ModuleNotFoundError("No module named 'mine'", name="mine")
    assert extras.explained(other) is other


def test_the_table_agrees_with_the_project_file() -> None:
    declared = PROJECT["optional-dependencies"]
    core = {re.split("[>=]", line)[0] for line in PROJECT["dependencies"]}
    assert not core & set(extras._EXTRA_OF)
    for extra, packages in extras.EXTRAS.items():
        names = {re.split("[>=]", line)[0] for line in declared[extra]}
        assert set(packages) <= names, extra
    assert declared["all"] == [f"notsodeep[{','.join(sorted(extras.EXTRAS))}]"]
