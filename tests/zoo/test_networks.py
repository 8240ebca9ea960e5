"""The networks that come with the package."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import notsodeep as nsd
from notsodeep.data import load
from notsodeep.errors import UnknownName
from notsodeep.trained.margin import margin_of


@pytest.mark.parametrize("name", nsd.zoo.names())
def test_networks_are_of_the_form_they_were_trained_in(name: str) -> None:
    cell = nsd.zoo.load(name)
    form, data, width = name.split("-")
    assert (cell.width, cell.metadata["data"]) == (int(width), data)
    assert str(cell.activation) == {"tanh": "tanh", "monotone": "relu"}[form]
    if form == "tanh":
        assert np.linalg.norm(cell.arrays()["W"], 2) == pytest.approx(0.9, abs=1e-5)
    else:
        assert margin_of(cell).value == pytest.approx(0.5, abs=1e-4)


@pytest.mark.parametrize("name", ["monotone-digits-64", "tanh-digits-64"])
def test_the_accuracy_in_the_file_is_that_of_the_network(name: str) -> None:
    cell, data = nsd.zoo.load(name), load("digits", preprocessing="unit_range")
    with torch.no_grad():
        classes = cell(torch.as_tensor(data.X_test)).argmax(dim=1).numpy()
    accuracy = float((classes == data.y_test).mean())
    assert accuracy == pytest.approx(float(cell.metadata["test_accuracy"]), abs=0.003)
    assert accuracy > 0.9


def test_names_that_are_not_known() -> None:
    with pytest.raises(UnknownName, match="tanh-digits-64"):
        nsd.zoo.load("tanh-digit-64")
