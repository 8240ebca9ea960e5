"""Kernels on disk: the same bits whatever is killed; damage is named and computed again."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from scipy.sparse.linalg import aslinearoperator, cg

import notsodeep as nsd
from notsodeep.errors import DataCorrupted, InvalidInput, NotEnoughMemory, RunInUse
from notsodeep.kernels import KernelStore, store_kernel

MODEL = nsd.DeepEquilibrium("tanh", 0.2)
TOTAL = 66


def samples(n: int = 700) -> np.ndarray:
    """Rows of different norms."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, 30)) / np.sqrt(30) * np.exp(rng.uniform(-0.5, 0.5, size=(n, 1)))


def stored(path: Path, **options: Any) -> KernelStore:
    return store_kernel(path, MODEL, samples(), kind="ntk", block=64, **options)


def contents(store: KernelStore) -> dict[Path, bytes]:
    return {p.relative_to(store.path): p.read_bytes() for p in store.path.glob("c/*/*")}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> KernelStore:
    """A store that nothing happened to."""
    return stored(tmp_path_factory.mktemp("whole") / "k.zarr")


@pytest.fixture
def copy(whole: KernelStore, tmp_path: Path) -> KernelStore:
    """A copy of it, to be damaged."""
    return KernelStore(shutil.copytree(whole.path, tmp_path / "copy.zarr"))


@pytest.mark.parametrize(("dtype", "kind"), [("float64", "ntk"), ("float32", "ck")])
def test_blocks_are_the_kernel_to_the_last_bit(tmp_path: Path, dtype: str, kind: str) -> None:
    X = samples(2000)
    store = store_kernel(tmp_path / "k.zarr", MODEL, X, kind=kind, dtype=dtype)
    assert (
        store.read() == nsd.kernel(MODEL, X, kind=kind, convention="feature").astype(dtype)
    ).all()
    assert (store.dtype, len(contents(store)), store.verify()) == (np.dtype(dtype), 3, {})


def test_parts_operator_and_dask_are_the_kernel(whole: KernelStore) -> None:
    K = whole.read()
    exact = nsd.kernel(MODEL, samples(), kind="ntk", convention="feature")
    np.testing.assert_allclose(K, exact, rtol=1e-13, atol=1e-15)
    assert (whole.model, whole.shape) == (MODEL, (700, 700))
    assert (whole.diagonal() == K.diagonal()).all()
    for rows, columns in (
        (slice(60, 200), slice(None)),
        (slice(690, None), slice(3, 130)),
        (slice(5, 5), slice(0, 9)),
    ):
        assert (whole.read(rows, columns) == K[rows, columns]).all()
    array = zarr.open_array(whole.path, mode="r")
    assert (array[:64, 64:] == K[:64, 64:]).all()
    assert np.isnan(array[64:128, :64]).all(), "plain Zarr reads the upper triangle alone"
    assert (whole.to_dask().compute(scheduler="threads") == K).all()
    A, rng = whole.operator(), np.random.default_rng(1)
    for V in (rng.normal(size=700), rng.normal(size=(700, 4)), 1j * rng.normal(size=(700, 2))):
        np.testing.assert_allclose(A @ V, K @ V, rtol=1e-11, atol=1e-11)
    y = rng.normal(size=700)
    solution, failed = cg(A + aslinearoperator(50.0 * np.eye(700)), y, rtol=1e-10)
    assert failed == 0
    np.testing.assert_allclose(K @ solution + 50.0 * solution, y, atol=1e-8)


def test_deleted_and_damaged_chunks_are_named_and_computed_again(
    whole: KernelStore, copy: KernelStore
) -> None:
    deleted, changed, cut = (copy.path / "c" / index for index in ("0/3", "2/2", "4/9"))
    deleted.unlink()
    content = bytearray(changed.read_bytes())
    content[100] ^= 1
    changed.write_bytes(content)
    cut.write_bytes(cut.read_bytes()[:-8])
    for path in (deleted, changed, cut):
        i, j = (int(part) for part in path.parts[-2:])
        with pytest.raises(DataCorrupted, match=f"c/{i}/{j}"):
            copy.read(slice(64 * i, 64 * i + 64), slice(64 * j, 64 * j + 64))
    assert set(copy.verify()) == {deleted, changed, cut}
    with pytest.raises(DataCorrupted, match="must be complete"):
        copy.operator()
    for path in (changed, cut):
        path.unlink()
    assert stored(copy.path).verify() == {}
    assert contents(copy) == contents(whole)


def test_other_kernels_and_other_directories_are_rejected(
    copy: KernelStore, tmp_path: Path
) -> None:
    choice: dict[str, Any] = {"kind": "ntk", "block": 64}
    for changed, key in (
        ({"kind": "ck"}, "kind"),
        ({"convention": "preactivation"}, "convention"),
        ({"dtype": "float32"}, "dtype"),
    ):
        with pytest.raises(InvalidInput, match=key):
            store_kernel(copy.path, MODEL, samples(), **{**choice, **changed})
    with pytest.raises(InvalidInput, match="model"):
        store_kernel(copy.path, nsd.DeepEquilibrium("tanh", 0.3), samples(), **choice)
    with pytest.raises(InvalidInput, match="samples"):
        store_kernel(copy.path, MODEL, 2.0 * samples(), **choice)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(InvalidInput, match="empty directory"):
        stored(tmp_path / "mine")
    with pytest.raises(InvalidInput, match="must be a kernel store"):
        KernelStore(tmp_path / "nowhere")


def test_what_does_not_fit_into_memory_is_not_read(
    whole: KernelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("notsodeep.checks.available_memory", lambda: 1_000_000)
    with pytest.raises(NotEnoughMemory):
        whole.read()


KILLED = """
import sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from test_store import stored
stored(Path(sys.argv[1]))
"""


def started(path: Path, chunks: int) -> subprocess.Popen[bytes]:
    """Start storing in another process, and wait for some chunks."""
    folder = str(Path(__file__).parent)
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(path), folder])
    while len(list(path.glob("c/*/*"))) < chunks:
        assert process.poll() is None
        time.sleep(0.005)
    return process


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="there is no SIGKILL")
def test_a_killed_run_is_resumed_to_the_same_bytes(whole: KernelStore, tmp_path: Path) -> None:
    path = tmp_path / "k.zarr"
    process = started(path, 5)
    with pytest.raises(RunInUse):
        stored(path)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    done = len(KernelStore(path).missing())
    assert 0 < done < TOTAL
    before = {p: p.stat().st_mtime_ns for p in path.glob("c/*/*")}
    assert contents(stored(path)) == contents(whole)
    assert all(p.stat().st_mtime_ns == when for p, when in before.items())


@pytest.mark.slow
def test_workers_of_a_cluster_store_the_same_bytes_and_may_be_killed(
    whole: KernelStore, tmp_path: Path
) -> None:
    distributed = pytest.importorskip("distributed")
    path = tmp_path / "k.zarr"
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, host="127.0.0.1"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        pid = next(iter(client.run(os.getpid).values()))

        def kill() -> None:
            while len(list(path.glob("c/*/*"))) < 3:
                time.sleep(0.005)
            os.kill(pid, signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        store = stored(path, client=client)
        killer.join()
        assert contents(store) == contents(whole)
        K = store.to_dask()
        v = np.arange(700.0)
        np.testing.assert_allclose((K @ v).compute(), whole.read() @ v, rtol=1e-12)
