"""Descriptions nested in themselves: read by recursion, so bounded in depth."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors import safe_open
from safetensors.torch import save_file

import notsodeep as nsd
from nested_activations import nested, text
from notsodeep import activations, checks
from notsodeep.errors import DataCorrupted, InvalidInput
from notsodeep.files.run_directory import RunDirectory, stored_settings

DEPTHS = [50, 150, 450, 5000]


@pytest.mark.parametrize("start", ["[", '{"a": '])
def test_json_is_read_to_a_hundred_levels(start: str) -> None:
    end = {"[": "]", "{": "}"}[start[0]]
    assert checks.strict_json(start * 100 + "1" + end * 100)
    for levels in (101, 200, 1000, 100_000):
        with pytest.raises(ValueError, match="nested more than 100 levels deep"):
            checks.strict_json(start * levels + "1" + end * levels)


def test_what_we_write_is_read() -> None:
    # Constants of centred activations add up to one.
    assert activations.from_dict(nested(40)).to_dict() == nested(1)
    assert json.loads(text(40)) == nested(40)


@pytest.mark.parametrize("levels", DEPTHS)
def test_activations_in_memory(levels: int) -> None:
    for read in (
        lambda: activations.from_dict(nested(levels)),
        lambda: nsd.DeepEquilibrium.from_dict(
            {"kind": "deep_equilibrium", "cell": [{"activation": nested(levels), "weight": 0.2}]}
        ),
        lambda: nsd.ExplicitNetwork.from_dict(
            {"kind": "explicit_network", "activations": [nested(levels)]}
        ),
    ):
        with pytest.raises(InvalidInput, match="nested at most 100 levels deep"):
            read()


@pytest.mark.parametrize("levels", DEPTHS)
def test_saved_networks(tmp_path: Path, levels: int) -> None:
    path = tmp_path / "net.safetensors"
    nsd.save(nsd.build(nsd.ExplicitNetwork(["relu"]), 2, 3, 2, rng=0), path)
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = file.metadata()
    (entry,) = metadata
    assert json.dumps(nested(0)) in metadata[entry]
    metadata[entry] = metadata[entry].replace(json.dumps(nested(0)), text(levels))
    save_file(tensors, path, metadata)
    with pytest.raises(DataCorrupted, match="nested more than 100 levels deep"):
        nsd.load(path)


@pytest.mark.parametrize("levels", DEPTHS)
def test_settings_of_runs(tmp_path: Path, levels: int) -> None:
    content = f'{{"kind": "job", "settings": {{"activation": {text(levels)}}}}}'
    (tmp_path / "settings.json").write_text(content)
    with pytest.raises(InvalidInput, match="holds no job run"):
        stored_settings(tmp_path, "job")
    with (
        pytest.raises((DataCorrupted, InvalidInput)),
        RunDirectory(tmp_path, "job", {"width": 3}).opened(),
    ):
        pass
