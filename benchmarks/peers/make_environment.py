"""Make the environment of another library, for comparison: a directory of its own.

    python benchmarks/peers/make_environment.py neural-tangents

The benchmarks look in benchmarks/peers/.venv-NAME unless told otherwise.  Packages come from
wherever pip is set up to take them from; nothing is put into the environment of this project.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import venv
from pathlib import Path

REQUIREMENTS = {
    # The last release uses functions that later versions of jax do not have.
    "neural-tangents": ("neural-tangents==0.6.5", "jax<0.6", "jaxlib<0.6", "numpy<2.4", "scipy"),
}


def default_directory(name: str) -> Path:
    """Return where the environment of a library is looked for."""
    return Path(__file__).parent / f".venv-{name}"


def interpreter(folder: Path) -> Path:
    """Return the Python of an environment."""
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def main() -> None:
    """Make the environment, or complete one that is there."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=sorted(REQUIREMENTS))
    parser.add_argument("directory", type=Path, nargs="?")
    options = parser.parse_args()
    folder = options.directory or default_directory(options.name)
    if not interpreter(folder).exists():
        venv.create(folder, with_pip=True)
    pip = [str(interpreter(folder)), "-m", "pip", "--disable-pip-version-check", "install"]
    finished = subprocess.run([*pip, "--quiet", *REQUIREMENTS[options.name]], check=False)
    if finished.returncode:
        sys.exit(f"pip could not install {options.name} into {folder}: see above")
    print(f"{options.name} is in {folder}")


if __name__ == "__main__":
    main()
