"""Kernels on Dask workers: the same bytes as in process, whoever dies."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import notsodeep as nsd
from cluster import kill_workers, local_workers
from killed_store import MODEL, marks, samples, store
from notsodeep.cluster.dask_executor import DaskExecutor
from notsodeep.cluster.executors import InProcess
from notsodeep.errors import InvalidInput
from notsodeep.kernels.distributed_operator import DistributedKernelOperator


@pytest.fixture(scope="module")
def executor() -> Iterator[DaskExecutor]:
    with local_workers() as executor:
        yield executor


def operator(executor: DaskExecutor | InProcess, **options: str) -> DistributedKernelOperator:
    return DistributedKernelOperator(
        MODEL, samples(), executor=executor, kernel="tangent", side=128, **options
    )


def vectors() -> np.ndarray:
    return np.random.default_rng(3).normal(size=(700, 3))


@pytest.fixture(scope="module")
def product() -> np.ndarray:
    return np.asarray(operator(InProcess()) @ vectors())


def test_product_in_process_is_that_of_the_matrix(product: np.ndarray) -> None:
    expected = nsd.tangent_kernel(MODEL, samples()) @ vectors()
    np.testing.assert_allclose(product, expected, rtol=1e-11, atol=1e-12)
    for cache, tolerance in (("float64", 0.0), ("float32", 1e-6)):
        A = operator(InProcess(2), cache=cache)
        for _ in range(2):
            assert np.abs(A @ vectors() - product).max() <= tolerance


def test_cross_kernel_in_process() -> None:
    X, Y = samples(300), samples(90)[::-1]
    K = nsd.conjugate_kernel(MODEL, X, Y)
    A = DistributedKernelOperator(MODEL, X, Y, executor=InProcess(), side=100)
    V, W = vectors()[:90], vectors()[:300]
    np.testing.assert_allclose(A @ V, K @ V, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(A.T @ W, K.T @ W, rtol=1e-11, atol=1e-12)
    with pytest.raises(InvalidInput, match="symmetric"):
        A.diagonal()


@pytest.mark.parametrize("cache", ["never", "float64"])
def test_product_on_workers_is_the_same_to_the_last_bit(
    executor: DaskExecutor, product: np.ndarray, cache: str
) -> None:
    A = operator(executor, cache=cache)
    for _ in range(2):
        assert (A @ vectors() == product).all()
    assert (A.diagonal() == operator(InProcess()).diagonal()).all()


# Workers are killed from here on.  New ones take their place, when they have started.


def test_stored_kernel_survives_a_killed_worker(executor: DaskExecutor, tmp_path: Path) -> None:
    expected = store(tmp_path / "whole.zarr").digest
    place = tmp_path / "k.zarr"

    def kill_midway() -> None:
        while len(marks(place)) < 8:
            time.sleep(0.005)
        kill_workers(executor, 1)

    killer = threading.Thread(target=kill_midway, daemon=True)
    killer.start()
    stored = store(place, executor)
    killer.join()
    assert stored.digest == expected
    assert stored.verify() == {}


def test_kept_blocks_survive_the_loss_of_every_worker(
    executor: DaskExecutor, product: np.ndarray
) -> None:
    A = operator(executor, cache="float64")
    assert (A @ vectors() == product).all()
    kill_workers(executor, 2)
    assert (A @ vectors() == product).all()
