"""The same command in unkind surroundings, each in a process of its own."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from notsodeep.data import load
from notsodeep.errors import DataNotFound
from printed import complaints

BARE = {
    name: value
    for name, value in os.environ.items()
    if name in ("PATH", "PYTHONPATH", "OMP_NUM_THREADS", "TMPDIR")
}


def run(
    *arguments: str,
    flags: tuple[str, ...] = (),
    cwd: Path | None = None,
    file_size: int | None = None,
    **environment: str,
) -> subprocess.CompletedProcess[bytes]:
    """Run Python with almost no environment."""

    def limit() -> None:
        if file_size is not None:
            # Without the signal, a write beyond the limit is an error like that of a full disk.
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, file_size))

    return subprocess.run(
        [sys.executable, *flags, *arguments],
        cwd=cwd,
        capture_output=True,
        check=False,
        # A file of byte code that the limit cuts short would break every later process.
        env={**BARE, "PYTHONDONTWRITEBYTECODE": "1", **environment},
        preexec_fn=limit,
    )


def command(*arguments: str, **options: object) -> subprocess.CompletedProcess[bytes]:
    return run("-m", "notsodeep", *arguments, **options)


def test_c_locale(tmp_path: Path) -> None:
    """No Greek letters, then; but the numbers, and JSON as ever."""
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    made = command("kernel", "--samples", "20", cwd=tmp_path, **plain)
    assert made.returncode == 0, made.stderr
    assert b"kernel.npy" in made.stdout
    refused = command("kernel", "--sigma-a2", "2", **plain)
    assert refused.returncode == 2
    assert refused.stderr.startswith(b"error: sigma_a2")


def test_no_home_directory() -> None:
    """HOME may be missing where nothing is kept there."""
    code = """
        import pwd, sys
        def nobody(*arguments): raise KeyError
        pwd.getpwuid = nobody
        import notsodeep as nsd
        assert nsd.data.load("digits", samples=20, rng=0).X.shape == (20, 64)
    """
    result = run("-c", textwrap.dedent(code))
    assert result.returncode == 0, result.stderr


def test_an_unknown_user_has_no_home_directory() -> None:
    with pytest.raises(DataNotFound, match="no file ~nobody"):
        load("~nobody-of-that-name/d.npz")


def test_optimised_python_checks_as_much() -> None:
    """No check is an assert statement."""
    result = command("kernel", "--sigma-a2", "1", "--json", flags=("-O",))
    assert result.returncode == 2
    assert "0 ≤ sigma_a2 < 1".encode() in result.stderr


def test_warnings_as_errors_and_awkward_paths(tmp_path: Path) -> None:
    place = tmp_path / "mit Leerzeichen und Übermaß ' \""
    place.mkdir()
    X = np.random.default_rng(0).normal(size=(20, 4))
    np.savez(place / "d ü.npz", X=X, y=np.arange(20) % 2)
    arguments = ("kernel", "--data", "d ü.npz", "--out", "sub dir/k é.npy", "--json")
    result = command(*arguments, flags=("-W", "error", "-X", "dev"), cwd=place)
    assert result.returncode == 0, result.stderr
    assert complaints(result.stderr.decode()) == ""
    assert json.loads(result.stdout)["shape"] == [20, 20]
    assert np.load(place / "sub dir" / "k é.npy").shape == (20, 20)


def test_a_full_disk(tmp_path: Path) -> None:
    """One line with the reason, and no half file."""
    result = command(
        *("kernel", "--samples", "100", "--out", str(tmp_path / "k.npy")), file_size=20_000
    )
    assert result.returncode == 1
    assert complaints(result.stderr.decode()).startswith("error: ")
    assert list(tmp_path.iterdir()) == []


KERNELS = """
import sys, numpy as np, notsodeep as nsd
X = np.random.default_rng(0).normal(size=(60, 7)) / 7**0.5
pairs = [
    nsd.kernel(nsd.DeepEquilibrium("tanh", 0.2), rows, kind="both")
    for rows in (X, X / np.linalg.norm(X, axis=1, keepdims=True))
]
np.save(sys.argv[1], [(pair.ck, pair.ntk) for pair in pairs])
"""


def test_more_threads_than_cores_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("OMP_NUM_THREADS", "NOTSODEEP_THREADS", "NUMBA_NUM_THREADS")
    many, few = tmp_path / "many.npy", tmp_path / "few.npy"
    assert run("-c", KERNELS, str(many), **dict.fromkeys(names, "32")).returncode == 0
    monkeypatch.setenv("NOTSODEEP_THREADS", "1")
    monkeypatch.setattr(sys, "argv", ["-c", str(few)])
    exec(KERNELS, {})
    np.testing.assert_allclose(np.load(many), np.load(few), rtol=1e-12)


@pytest.mark.slow
def test_the_process_that_compiles_computes_what_the_next_one_does(tmp_path: Path) -> None:
    for name in ("compiled.npy", "loaded.npy"):
        result = run("-c", KERNELS, str(tmp_path / name), NUMBA_CACHE_DIR=str(tmp_path / "cache"))
        assert result.returncode == 0, result.stderr
    assert any((tmp_path / "cache").rglob("*solve_ring*.nbc"))
    assert (tmp_path / "compiled.npy").read_bytes() == (tmp_path / "loaded.npy").read_bytes()
