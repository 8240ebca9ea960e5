"""Numbers of the package as it was at commit 35ed15c, where they were right: none may move.

`references/golden/*.json` were written once, by that commit, from models drawn at random; each
entry holds the description of its model and of its inputs, so that nothing is drawn again here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import notsodeep as nsd
from notsodeep.equivalents import expansion

GOLDEN = Path(__file__).parent / "references" / "golden"
Case = dict[str, Any]


def stored(name: str) -> list[Case]:
    return json.loads((GOLDEN / f"{name}.json").read_text())  # type: ignore[no-any-return]


def activation(description: Any) -> Any:
    if isinstance(description, str):
        return description
    name, *parameters = description
    return getattr(nsd.activations, name)(*parameters)


def dense(layer: Case) -> nsd.Dense:
    options = {name: layer[name] for name in ("weight", "inject", "bias")}
    options["normalise"] = layer["normalise"]
    return nsd.Dense(activation(layer["activation"]), **options)


def model_of(case: Case) -> Any:
    match case["type"]:
        case "vanilla":
            return nsd.DeepEquilibrium(activation(case["activation"]), case["sigma_a2"])
        case "ring":
            return nsd.DeepEquilibrium(cell=[dense(layer) for layer in case["layers"]])
        case "explicit":
            return nsd.ExplicitNetwork([activation(name) for name in case["activations"]])
        case "monotone":
            names = ("monotonicity", "symmetric", "skew", "inject", "bias")
            return nsd.MonotoneEquilibrium(
                activation(case["activation"]), **{name: case[name] for name in names}
            )
        case "explicit_convolution":
            return nsd.ConvolutionalNetwork(
                [activation(name) for name in case["activations"]],
                image_shape=tuple(case["image_shape"]),
                pooling=case["pooling"],
                padding=case["padding"],
            )
        case _:
            names = ("weight", "inject", "bias", "size")
            layers = [
                nsd.Convolution(
                    activation(layer["activation"]), **{name: layer[name] for name in names}
                )
                for layer in case["layers"]
            ]
            return nsd.ConvolutionalEquilibrium(
                cell=layers,
                image_shape=tuple(case["image_shape"]),
                pooling=case["pooling"],
                padding=case["padding"],
            )


def inputs(case: Case) -> np.ndarray:
    """Return five rows: one, one of another norm, one near the first, one opposite, one more."""
    rng, p = np.random.default_rng(case["seed"]), case["features"]
    X = rng.standard_normal((5, p)) / np.sqrt(p)
    X[1] *= 10.0 ** case["decades"]
    X[2] = X[0] + case["near"] * X[2]
    X[3] = -X[0] * case["opposite"]
    return X


@pytest.mark.filterwarnings("ignore::notsodeep.errors.TheoryDoubtful")
@pytest.mark.parametrize(
    "kind", ["vanilla", "ring", "explicit", "convolution", "explicit_convolution", "monotone"]
)
def test_kernels(kind: str) -> None:
    upper = np.triu_indices(5)
    for case in stored("kernels"):
        if case["model"]["type"] != kind:
            continue
        model, X = model_of(case["model"]), inputs(case["inputs"])
        for name in {"ck feature", "ntk feature", "ck preactivation", "ntk preactivation"} & {
            *case
        }:
            which, convention = name.split()
            K = nsd.kernel(model, X, kind=which, convention=convention)
            size = np.sqrt(np.outer(np.diag(K), np.diag(K)))[upper]
            error = np.abs(np.asarray(K)[upper] - case[name]) / size
            assert error.max() < 2e-12, (case, name, error.max())


def test_expansions() -> None:
    for case in stored("expansions"):
        e = expansion(
            model_of(case["model"]),
            case["tau0"],
            kind=case["kind"],
            convention=case["convention"],
        )
        for name, value in case["expansion"].items():
            assert getattr(e, name) == pytest.approx(value, rel=1e-10, abs=1e-12), (case, name)


def test_risks() -> None:
    for case in stored("risks"):
        mean = np.r_[1.0, np.zeros(case["features"] - 1)]
        mixture = nsd.data.GaussianMixture(np.vstack([mean, -mean]), [1.0, 1.2])
        deq = nsd.DeepEquilibrium(case["activation"], case["sigma_a2"])
        risk = nsd.predict_risk(deq, mixture, counts=tuple(case["counts"]), ridge=case["ridge"])
        for name in ("test_mse", "train_mse", "accuracy"):
            # That commit counted what is nonlinear along the class means twice, which is 1.7e-3 of
            # these numbers at most.
            np.testing.assert_allclose(getattr(risk, name), case[name], rtol=2e-3, err_msg=name)


def test_zoo() -> None:
    torch = pytest.importorskip("torch")
    from notsodeep import trained

    digits = nsd.data.load("digits", preprocessing="unit_range").X_test[:40]
    rng = np.random.default_rng(5)
    sparse = rng.uniform(size=(40, 784)) * (rng.random((40, 784)) < 0.2)
    for case in stored("zoo"):
        cell = nsd.zoo.load(case["name"])
        X = digits if case["rows"] == "digits" else sparse
        with torch.no_grad():
            states = cell.solve(cell.drive(X), 1e-12).z
            logits = cell.logits(states).numpy()
        np.testing.assert_allclose(
            np.linalg.norm(states, axis=1)[:10], case["state norms"], rtol=1e-9
        )
        np.testing.assert_allclose(logits[:3], case["logits"], rtol=1e-8, atol=1e-8)
        assert logits.argmax(axis=1).tolist() == case["classes"]
        assert trained.margin_of(cell).value == pytest.approx(case["margin"], rel=1e-6)
