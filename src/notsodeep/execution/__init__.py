"""Where work runs, and what lasts of it: executors, atomic files, manifests, locks, bars."""

from __future__ import annotations

from notsodeep.execution.atomic_files import atomic_write, make_directory, write_array, write_json
from notsodeep.execution.digests import sha256_of_array, sha256_of_bytes, sha256_of_file
from notsodeep.execution.executors import Executor, InProcess, open_executor
from notsodeep.execution.locks import exclusive_lock
from notsodeep.execution.manifests import Manifest
from notsodeep.execution.progress import Advance, progress_bar

__all__ = [
    "Advance",
    "Executor",
    "InProcess",
    "Manifest",
    "atomic_write",
    "exclusive_lock",
    "make_directory",
    "open_executor",
    "progress_bar",
    "sha256_of_array",
    "sha256_of_bytes",
    "sha256_of_file",
    "write_array",
    "write_json",
]
