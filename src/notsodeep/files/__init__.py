"""What lasts: files that are complete or absent, locks, manifests, runs that can be resumed."""

from notsodeep.files.atomic_files import (
    atomic_write,
    exclusive_lock,
    make_directory,
    write_array,
    write_json,
)
from notsodeep.files.manifests import Manifest, sha256_of_array, sha256_of_bytes, sha256_of_file

__all__ = [
    "Manifest",
    "atomic_write",
    "exclusive_lock",
    "make_directory",
    "sha256_of_array",
    "sha256_of_bytes",
    "sha256_of_file",
    "write_array",
    "write_json",
]
