"""Kernels on disk: what is stored is the kernel, and whatever happens to it is found and mended."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import zarr
from scipy.sparse.linalg import LinearOperator, aslinearoperator, cg

import notsodeep as nsd
from killed_store import MODEL, marks, samples, store
from notsodeep import checks
from notsodeep.cluster.executors import InProcess
from notsodeep.errors import (
    DataCorrupted,
    InvalidInput,
    MissingPackage,
    NotEnoughMemory,
    NotSerialisable,
    RunInUse,
    StoreMismatch,
    UnknownName,
)
from notsodeep.files import Manifest, exclusive_lock
from notsodeep.kernels.kernel_store import KernelStore
from notsodeep.kernels.store_writing import store_kernel

TOTAL = 66


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> KernelStore:
    """A store that nothing happened to."""
    return store(tmp_path_factory.mktemp("whole") / "k.zarr")


@pytest.fixture
def copy(whole: KernelStore, tmp_path: Path) -> KernelStore:
    """A copy of it, to be damaged."""
    return KernelStore(shutil.copytree(whole.path, tmp_path / "copy.zarr"))


@pytest.fixture(scope="module")
def dense() -> np.ndarray:
    return np.asarray(nsd.tangent_kernel(MODEL, samples()))


def test_it_holds_the_kernel(whole: KernelStore, dense: np.ndarray) -> None:
    K = whole.to_dense()
    np.testing.assert_allclose(K, dense, rtol=1e-13, atol=1e-15)
    assert (K == K.T).all()
    assert (whole.diagonal() == K.diagonal()).all()
    assert (whole.model, whole.kernel, whole.shape) == (MODEL, "tangent", (700, 700))


@pytest.mark.parametrize(
    ("dtype", "kernel"),
    [
        ("float64", "tangent"),
        ("float32", "conjugate"),
        pytest.param("float64", "conjugate", marks=pytest.mark.slow),
        pytest.param("float32", "tangent", marks=pytest.mark.slow),
    ],
)
def test_default_blocks_are_the_kernel_to_the_last_bit(
    tmp_path: Path, dtype: str, kernel: str
) -> None:
    X = samples(2000)
    function = nsd.tangent_kernel if kernel == "tangent" else nsd.conjugate_kernel
    stored = store_kernel(tmp_path / "k.zarr", MODEL, X, kernel=kernel, dtype=dtype)
    assert stored.dtype == dtype
    assert len(marks(stored.path)) == 3
    assert (stored.to_dense() == function(MODEL, X).astype(dtype)).all()


@pytest.mark.parametrize(
    ("rows", "columns"),
    [(slice(60, 200), slice(None)), (slice(690, None), slice(3, 130)), (slice(5, 5), slice(0, 9))],
)
def test_parts_are_parts(whole: KernelStore, rows: slice, columns: slice) -> None:
    assert (whole.read(rows, columns) == whole.to_dense()[rows, columns]).all()


def test_plain_zarr_reads_the_upper_triangle_and_nothing_below(whole: KernelStore) -> None:
    array = zarr.open_array(whole.path, mode="r")
    assert (array[:64, 64:] == whole.read(slice(64), slice(64, None))).all()
    assert np.isnan(array[64:128, :64]).all()


def test_operator_multiplies(whole: KernelStore, dense: np.ndarray) -> None:
    A = whole.operator()
    assert isinstance(A, LinearOperator)
    rng = np.random.default_rng(1)
    for V in (rng.normal(size=700), rng.normal(size=(700, 4)), 1j * rng.normal(size=(700, 2))):
        for product in (A @ V, A.T @ V, A.H @ V):
            np.testing.assert_allclose(product, dense @ V, rtol=1e-11, atol=1e-11)
    assert (A.diagonal() == whole.diagonal()).all()
    y = rng.normal(size=700)
    solution, failed = cg(A + aslinearoperator(50.0 * np.eye(700)), y, rtol=1e-10)
    assert failed == 0
    np.testing.assert_allclose(dense @ solution + 50.0 * solution, y, atol=1e-8)


def test_the_manifest_seals_it(whole: KernelStore) -> None:
    manifest = Manifest.read(whole.path)
    assert manifest is not None
    assert len(manifest.sha256) == TOTAL
    assert manifest.problems(whole.path) == ()
    assert manifest.facts["model"] == MODEL.to_dict()
    assert manifest.facts["samples"]["shape"] == [700, 30]
    assert manifest.facts["versions"]["numpy"] == np.__version__


def test_threads_make_no_difference(tmp_path: Path, whole: KernelStore) -> None:
    assert store(tmp_path / "k.zarr", InProcess(3)).digest == whole.digest


# --- faults ---------------------------------------------------------------------------------------


def killed_after(directory: Path, number: int, *where: str) -> int:
    """Start a driver, kill it when some blocks are done, and return how many are."""
    script = Path(__file__).parents[1] / "support" / "killed_store.py"
    with subprocess.Popen(
        [sys.executable, str(script), str(directory), *where], stderr=subprocess.DEVNULL
    ) as driver:
        deadline = time.monotonic() + 100.0
        while len(marks(directory)) < number and driver.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.002)
        os.kill(driver.pid, signal.SIGKILL)
    return len(marks(directory))


@pytest.mark.parametrize(
    "where", [(), pytest.param(("local",), marks=pytest.mark.slow)], ids=["in-process", "cluster"]
)
def test_a_killed_driver_is_resumed_to_the_same_bytes(
    tmp_path: Path, whole: KernelStore, where: tuple[str, ...]
) -> None:
    place = tmp_path / "k.zarr"
    done = killed_after(place, 8, *where)
    assert 8 <= done < TOTAL
    left = KernelStore(place)
    assert len(left.missing()) == TOTAL - done
    with pytest.raises(DataCorrupted, match=f"of {TOTAL} blocks are missing"):
        left.operator()
    before = {path: path.stat().st_mtime_ns for path in marks(place)}
    resumed = store(place)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert resumed.digest == whole.digest
    assert resumed.verify() == {}
    assert not list(place.rglob("*.partial"))


def delete(path: Path) -> None:
    path.unlink()


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [delete, flip_a_bit, truncate, empty])
@pytest.mark.parametrize("name", ["c/1/3", "c/10/10", "done/0-0.json", "done/2-7.json"])
def test_damage_is_found_and_mended(
    copy: KernelStore, whole: KernelStore, damage: Callable[[Path], None], name: str
) -> None:
    damage(copy.path / name)
    row, column = (int(k) for k in re.findall(r"\d+", name))
    place = row, column
    assert list(copy.verify()) == [place]
    changed = {path: path.stat().st_mtime_ns for path in (copy.path / "c").glob("*/*")}
    mended = store(copy.path, verify=True)
    again = {path: path.stat().st_mtime_ns for path in (copy.path / "c").glob("*/*")}
    assert [path for path in again if again[path] != changed.get(path)] == [
        copy.blocks.chunk(place)
    ]
    assert mended.verify() == {}
    assert mended.digest == whole.digest
    assert Manifest.read(mended.path) is not None


@pytest.mark.parametrize("damage", [delete, flip_a_bit, truncate, empty])
def test_damage_is_never_read_as_numbers(copy: KernelStore, damage: Callable[[Path], None]) -> None:
    A = copy.operator()
    damage(copy.path / "c/1/3")
    for use in (copy.to_dense, lambda: A @ np.ones(700)):
        with pytest.raises(DataCorrupted, match=r"c/1/3 is damaged .*verify=True"):
            use()
    assert np.isfinite(copy.read(slice(64), slice(64))).all()


@pytest.mark.parametrize("damage", [delete, empty])
def test_without_verify_what_is_plainly_missing_is_computed(
    copy: KernelStore, whole: KernelStore, damage: Callable[[Path], None]
) -> None:
    damage(copy.path / "c/0/5")
    assert copy.missing() == [(0, 5)]
    assert store(copy.path).digest == whole.digest


@pytest.mark.parametrize("damage", [delete, empty])
def test_a_lost_array_description_is_written_again(
    copy: KernelStore, whole: KernelStore, damage: Callable[[Path], None]
) -> None:
    damage(copy.path / "zarr.json")
    with pytest.raises(DataCorrupted, match=r"zarr\.json is damaged"):
        copy.to_dense()
    mended = store(copy.path)
    assert (mended.to_dense() == whole.to_dense()).all()


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "differing"),
    [
        ({"model": nsd.DeepEquilibrium("tanh", 0.21)}, ("model",)),
        ({"model": nsd.ExplicitNetwork(["tanh"])}, ("model",)),
        ({"X": samples() * (1.0 + 2e-16)}, ("samples",)),
        ({"X": samples()[::-1]}, ("samples",)),
        ({"kernel": "conjugate", "convention": "feature"}, ("kernel", "convention")),
        ({"dtype": "float32"}, ("dtype",)),
        ({"side": 128}, ("side",)),
    ],
)
def test_another_kernel_is_refused_unless_forced(
    copy: KernelStore, change: dict[str, object], differing: tuple[str, ...]
) -> None:
    path = copy.path
    wanted = {"model": MODEL, "X": samples(), "kernel": "tangent", "side": 64} | change
    before = sorted(path.rglob("*"))
    with pytest.raises(StoreMismatch, match=differing[0]) as caught:
        store_kernel(path, **wanted)
    assert caught.value.differing == differing
    assert sorted(path.rglob("*")) == before
    small = {**wanted, "X": samples(100)} if "X" not in change else wanted
    replaced = store_kernel(path, force=True, **small)
    assert replaced.verify() == {}
    assert len(Manifest.read(path).sha256) == len(marks(path))


def test_two_writers_are_refused(tmp_path: Path) -> None:
    with (
        exclusive_lock(tmp_path / "k.zarr" / ".lock"),
        pytest.raises(RunInUse, match="written by another process"),
    ):
        store(tmp_path / "k.zarr")


def test_other_directories_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    for path in (tmp_path, tmp_path / "letter.txt"):
        with pytest.raises(InvalidInput, match=r"letter\.txt"):
            store_kernel(path, MODEL, samples(), force=True)
    assert [p.name for p in tmp_path.iterdir()] == ["letter.txt"]
    with pytest.raises(InvalidInput, match="holds no kernel store"):
        KernelStore(tmp_path)


def test_a_store_of_a_later_version_is_refused(copy: KernelStore) -> None:
    path = copy.path / "description.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 2}))
    with pytest.raises(InvalidInput, match="version 2 of a kernel store"):
        KernelStore(path.parent)


def test_wrong_arguments_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    mine = nsd.activations.from_function(np.tanh, name="mine")
    calls: list[tuple[type[Exception], dict[str, object]]] = [
        (UnknownName, {"kernel": "ntk"}),
        (InvalidInput, {"dtype": "int8"}),
        (InvalidInput, {"side": 3}),
        (InvalidInput, {"X": np.full((3, 2), np.nan)}),
        (NotSerialisable, {"model": nsd.DeepEquilibrium(mine, 0.2)}),
    ]
    for error, wrong in calls:
        with pytest.raises(error):
            store_kernel(tmp_path / "k.zarr", **({"model": MODEL, "X": samples(20)} | wrong))
    assert not (tmp_path / "k.zarr").exists()


def test_a_dense_copy_that_does_not_fit_is_refused(
    whole: KernelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "available_memory", lambda: 1 << 20)
    with pytest.raises(NotEnoughMemory):
        whole.to_dense()
    assert whole.read(slice(10)).shape == (10, 700)


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "zarr" else real(name)
    )
    with pytest.raises(MissingPackage, match=r"zarr.*\[cluster\]"):
        store(tmp_path / "k.zarr")
