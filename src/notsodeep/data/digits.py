"""scikit-learn's handwritten digits: 1797 images of 8 × 8, on every machine that has the package.

The set has no official split.  The first 1437 images (80 %) are for training and the last 360 for
testing: the images are ordered by writer, so most test images are by hands not seen in training.
"""

from __future__ import annotations

from types import MappingProxyType

import numpy as np

from notsodeep.data.raw_data import ARRAY_NAMES, ImageArrays
from notsodeep.errors import DataCorrupted

NUM_TRAIN = 1437
NUM_TEST = 360
IMAGE_SHAPE = (8, 8)
LARGEST_PIXEL = 16
CLASS_NAMES = tuple("0123456789")

_SHA256 = MappingProxyType(
    dict(
        zip(
            ARRAY_NAMES,
            (
                "b284d50d1ff250076877f9fa076dc54f7a48937f997c4571de6cae27017f4f99",
                "00d355536cfe54c3c5aaa1bbc756008bcc5ba7030407f225954ebda1d1ca46c9",
                "cfff6ae4478611800cb91b9d2c5ae329e83dec33ba4d539ec56620f0182f6b56",
                "7a7a9acee298b8862700d7c2a0341a0ee3744e1369c9107a26149f5d0e61b304",
            ),
            strict=True,
        )
    )
)


def read_digits() -> ImageArrays:
    """Read the digits that come with scikit-learn and verify them."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = bunch.images.astype(np.uint8)
    labels = bunch.target.astype(np.uint8)
    train, test = slice(NUM_TRAIN), slice(NUM_TRAIN, None)
    arrays = ImageArrays(images[train], labels[train], images[test], labels[test])
    if arrays.sha256 != _SHA256:
        raise DataCorrupted(
            "The digits of this scikit-learn are not the 1797 images this package was tested "
            "with. Reinstall scikit-learn."
        )
    return arrays
