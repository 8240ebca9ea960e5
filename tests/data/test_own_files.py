"""A user's own data: three forms of one schema, and what does not follow it."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

from notsodeep.data import load
from notsodeep.data.user_files import read_files
from notsodeep.errors import DataCorrupted, DataNotFound, InvalidInput

RNG = np.random.default_rng(0)
X, X_TEST = RNG.standard_normal((12, 3)), RNG.standard_normal((6, 3))
Y = np.array(["cat", "dog", "ant"] * 4)
Y_TEST = np.array(["dog", "ant"] * 3)


def write_npz(path: Path) -> Path:
    np.savez(path / "d.npz", X=X, y=Y, X_test=X_TEST, y_test=Y_TEST)
    return path / "d.npz"


def write_directory(path: Path) -> Path:
    (path / "d").mkdir()
    for name, array in (("X", X), ("y", Y), ("X_test", X_TEST), ("y_test", Y_TEST)):
        np.save(path / "d" / f"{name}.npy", array)
    return path / "d"


def write_csv(path: Path) -> Path:
    lines = ["a, split ,b,label,c"]
    for part, rows, labels in (("train", X, Y), ("test", X_TEST, Y_TEST)):
        lines += [
            f'{a!r},{part},{b!r},"{label}",{c!r}'
            for (a, b, c), label in zip(rows.tolist(), labels, strict=True)
        ]
    (path / "d.csv").write_text("\n".join(lines) + "\n")
    return path / "d.csv"


@pytest.mark.parametrize("write", [write_npz, write_directory, write_csv])
def test_three_forms_of_one_set(tmp_path: Path, write) -> None:
    arrays, names, digests = read_files(write(tmp_path))
    np.testing.assert_array_equal(arrays["X"], X)
    np.testing.assert_array_equal(arrays["X_test"], X_TEST)
    assert names == ("ant", "cat", "dog")
    assert [names[k] for k in arrays["y"]] == Y.tolist()
    assert [names[k] for k in arrays["y_test"]] == Y_TEST.tolist()
    assert all(len(digest) == 64 for digest in digests.values())


def test_an_array_alone_has_no_labels(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    data = load(tmp_path / "x.npy", test_samples=4, preprocessing="none")
    assert (len(data.X), len(data.X_test), data.classes) == (8, 4, ("0",))


def test_load_preprocesses_them_like_any_set(tmp_path: Path) -> None:
    data = load(write_csv(tmp_path), classes=("dog", "cat"))
    assert data.classes == ("dog", "cat")
    assert data.X.shape == (8, 3)
    assert data.X.mean(axis=0) == pytest.approx(np.zeros(3), abs=1e-15)
    assert data.y_test.tolist() == [0, 0, 0]
    assert data.provenance.source.endswith("d.csv")
    assert load(str(tmp_path / "d.csv")).X.shape == (12, 3)


def test_without_a_test_part_some_samples_are_held_out_on_request(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", X=np.arange(40.0).reshape(20, 2), y=np.arange(20) % 2)
    assert load(tmp_path / "d.npz").X_test.shape == (0, 2)
    data = load(tmp_path / "d.npz", test_samples=6, rng=1, preprocessing="none")
    assert len(data.X) == 14
    np.testing.assert_array_equal(np.bincount(data.y_test), [3, 3])
    assert not set(data.train_indices) & set(data.test_indices)
    np.testing.assert_array_equal(data.X_test, np.arange(40.0).reshape(20, 2)[data.test_indices])


def test_integer_labels_keep_their_order_and_are_chosen_by_value(tmp_path: Path) -> None:
    lines = ["x,label", *(f"{k},{label}" for k, label in enumerate([10, 9, 2, 10, 9, 2]))]
    (tmp_path / "d.csv").write_text("\n".join(lines))
    assert read_files(tmp_path / "d.csv")[1] == ("2", "9", "10")
    data = load(tmp_path / "d.csv", classes=(10, 2), preprocessing="none")
    assert data.X[:, 0].tolist() == [0.0, 2.0, 3.0, 5.0]
    assert data.y.tolist() == [0, 1, 0, 1]


def test_images_are_flattened_and_their_shape_is_kept(tmp_path: Path) -> None:
    for shape in ((8, 8, 16), (4, 5, 3), (2, 9, 2), (6, 7)):  # channels are never guessed
        images = RNG.integers(0, 256, (10, *shape), dtype=np.uint8)
        np.savez(tmp_path / "d.npz", X=images, y=np.arange(10) % 2)
        data = load(tmp_path / "d.npz", preprocessing="none")
        assert data.image_shape == (shape if len(shape) == 3 else (*shape, 1))
        np.testing.assert_array_equal(data.X, images.reshape(10, -1))
        unit = load(tmp_path / "d.npz", preprocessing="unit_range")
        np.testing.assert_array_equal(unit.X, data.X / 255.0)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"X": X}, "X and y, with X_test and y_test both or neither. Got X"),
        ({"X": X, "y": Y, "x_test": X}, "Got X, x_test, y"),
        ({"X": X, "y": Y, "X_test": X}, "both or neither"),
        ({"X": X, "y": Y[:5]}, "one label for each of the 12 rows. Got 5"),
        ({"X": X[:, 0], "y": Y}, r"one row per sample, shape \(n, …\)"),
        ({"X": X, "y": X[:, 0]}, "integers or strings"),
        ({"X": X * np.nan, "y": Y}, "be finite"),
        ({"X": X + 1j, "y": Y}, "hold real numbers"),
        ({"X": X[:0], "y": Y[:0]}, "at least one row"),
        ({"X": X, "y": Y, "X_test": X[:, :2], "y_test": Y}, r"rows of shape \(3,\) like X"),
        ({"X": X, "y": Y, "X_test": X[:1], "y_test": np.array(["emu"])}, "the label emu"),
    ],
)
def test_what_does_not_follow_the_schema_is_refused(
    tmp_path: Path, arrays: dict, message: str
) -> None:
    np.savez(tmp_path / "d.npz", **arrays)
    with pytest.raises(InvalidInput, match=message):
        read_files(tmp_path / "d.npz")


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("", InvalidInput, "at least one row"),
        ("a,label\n", InvalidInput, "at least one row"),
        ("a,b\n1,2\n", InvalidInput, "name one column label"),
        ("label\n1\n", InvalidInput, "at least one feature"),
        ("a,label,label\n1,2,3\n", InvalidInput, "name one column label"),
        ("a,label,split\n1,2,train\n1,2,dev\n", InvalidInput, "train or test.*'dev'"),
        ("a,label\n1,2\nx,2\n", DataCorrupted, "table of numbers.*'x'"),
        ("a,label\n1,2\n1\n", DataCorrupted, "table of numbers"),
        ("a,label\n,2\n", DataCorrupted, "table of numbers"),
    ],
)
def test_tables_that_do_not_serve_are_refused(
    tmp_path: Path, text: str, error: type[Exception], message: str
) -> None:
    (tmp_path / "d.csv").write_text(text)
    with pytest.raises(error, match=message):
        read_files(tmp_path / "d.csv")


def test_a_byte_order_mark_and_hash_signs_are_no_trouble(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("label,#1\na#,1.5\nb,2\n", encoding="utf-8-sig")
    arrays, names, _ = read_files(tmp_path / "d.csv")
    assert names == ("a#", "b")
    assert arrays["X"].tolist() == [[1.5], [2.0]]


def test_truncated_and_damaged_files_are_refused(tmp_path: Path) -> None:
    path = write_npz(tmp_path)
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 3] ^= 255
    np.save(tmp_path / "single.npy", X)
    single = (tmp_path / "single.npy").read_bytes()
    for damaged in (whole[:-30], whole[:100], b"", b"PK", single, bytes(flipped)):
        path.write_bytes(damaged)
        with pytest.raises((DataCorrupted, InvalidInput)):
            read_files(path)
    directory = write_directory(tmp_path)
    (directory / "y.npy").write_bytes((directory / "y.npy").read_bytes()[:-8])
    with pytest.raises(DataCorrupted, match=r"y\.npy"):
        read_files(directory)


def test_objects_are_never_unpickled(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple:
            return (Path.touch, (tmp_path / "executed",))

    np.savez(tmp_path / "d.npz", X=np.array([Trap()], dtype=object), y=np.array([1]))
    assert "X.npy" in zipfile.ZipFile(tmp_path / "d.npz").namelist()
    with pytest.raises(DataCorrupted, match="allow_pickle"):
        read_files(tmp_path / "d.npz")
    assert not (tmp_path / "executed").exists()


def test_absent_files_and_other_formats(tmp_path: Path) -> None:
    with pytest.raises(DataNotFound, match=r"no file or directory .*absent\.npz"):
        load(tmp_path / "absent.npz")
    (tmp_path / "d.txt").write_text("1 2")
    with pytest.raises(InvalidInput, match=r"\.npz, \.npy, \.csv or a directory"):
        load(tmp_path / "d.txt")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidInput, match="Got none"):
        load(tmp_path / "empty")
