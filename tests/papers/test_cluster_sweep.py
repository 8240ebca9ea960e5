"""A sweep on Dask workers gives the numbers it gives in process."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster import local_workers
from notsodeep.papers.reproduction import reproduce


@pytest.mark.slow
def test_cells_on_workers(tmp_path: Path) -> None:
    here = reproduce("gap-versus-dimension", tmp_path / "here", profile="smoke")
    with local_workers() as executor:
        there = reproduce(
            "gap-versus-dimension", tmp_path / "there", profile="smoke", executor=executor
        )
    for mine, other in zip(here, there, strict=True):
        assert mine["cell"] == other["cell"]
        for kernel in ("conjugate", "tangent"):
            assert other[kernel]["gap"] == pytest.approx(mine[kernel]["gap"], rel=1e-10)
