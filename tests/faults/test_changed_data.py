"""A run is resumed on the data that it began with, and on no others."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import notsodeep as nsd
from notsodeep._files import sha256_of_file
from notsodeep.compilation.record import Step
from notsodeep.errors import InvalidInput


def arrays(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    y, y_test = np.arange(40) % 2, np.arange(24) % 2
    return {
        "X": rng.normal(size=(40, 5)) + 2.0 * y[:, None],
        "y": y,
        "X_test": rng.normal(size=(24, 5)) + 2.0 * y_test[:, None],
        "y_test": y_test,
    }


def npz(place: Path, content: dict[str, np.ndarray]) -> Path:
    np.savez(place / "d.npz", **content)
    return place / "d.npz"


def directory(place: Path, content: dict[str, np.ndarray]) -> Path:
    (place / "d").mkdir(exist_ok=True)
    for name, array in content.items():
        np.save(place / "d" / f"{name}.npy", array)
    return place / "d"


def csv(place: Path, content: dict[str, np.ndarray]) -> Path:
    lines = ["a,b,c,d,e,label,split"]
    for part, X, y in (("train", "X", "y"), ("test", "X_test", "y_test")):
        for row, label in zip(content[X].tolist(), content[y], strict=True):
            lines.append(",".join(map(repr, [*row, int(label)])) + f",{part}")
    (place / "d.csv").write_text("\n".join(lines))
    return place / "d.csv"


def compile_in(out: Path, path: Path, **options: Any) -> dict[str, Any]:
    """Return what a small run on a file measures."""
    small: dict[str, Any] = {"family": "leaky_relu", "refine": False, "width": 8, "seeds": 2}
    deq = nsd.DeepEquilibrium("relu", 0.2)
    return nsd.compile(deq, nsd.data.load(path), out=out, **small, **options).to_dict()


def interrupt(out: Path) -> None:
    """Drop what a kill would not have written yet."""
    for name in ("front", "draw-0", "draw-1"):
        (out / "pieces" / f"{name}.json").unlink()


@pytest.mark.parametrize("part", ["X", "y", "X_test", "y_test"])
@pytest.mark.parametrize("write", [npz, directory, csv])
def test_a_compilation_on_other_data_is_rejected(
    tmp_path: Path, write: Callable[..., Path], part: str
) -> None:
    content, out = arrays(0), tmp_path / "run"
    path = write(tmp_path, content)

    def stop(step: Step) -> None:
        if step.message.startswith("certifying"):  # something is stored by then
            raise KeyboardInterrupt(step.message)

    with pytest.raises(KeyboardInterrupt, match="certifying"):
        compile_in(out, path, progress=stop)
    content[part] = content[part][::-1].copy()
    write(tmp_path, content)
    with pytest.raises(InvalidInput, match=r"other data .*another directory, or force"):
        compile_in(out, path)


def test_neither_a_finished_nor_an_interrupted_run_is_mixed(tmp_path: Path) -> None:
    out = tmp_path / "run"
    path = npz(tmp_path, arrays(0))
    first = compile_in(out, path)
    npz(tmp_path, arrays(1))
    with pytest.raises(InvalidInput, match="other data"):
        compile_in(out, path)
    interrupt(out)
    before = {path: path.read_bytes() for path in out.rglob("*.json")}
    with pytest.raises(InvalidInput, match="other data"):
        compile_in(out, path)
    assert {path: path.read_bytes() for path in out.rglob("*.json")} == before
    npz(tmp_path, arrays(0))  # what it began with is back
    again = compile_in(out, path)
    assert again["accuracy"] == first["accuracy"]
    npz(tmp_path, arrays(1))
    forced = compile_in(out, path, force=True)
    assert forced["certificate"] != first["certificate"]
    told = json.loads((out / "pieces" / "data.json").read_text())["content"]["provenance"]["sha256"]
    assert told == {"d.npz": sha256_of_file(tmp_path / "d.npz")}
