"""Every record that can be drawn is drawn, into given axes or into new ones."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
from cycler import cycler
from matplotlib.colors import to_hex

import notsodeep as nsd
from notsodeep import plotting, prediction
from notsodeep.collapse import CollapseMetrics, layer_peeled, simplex_etf
from notsodeep.data import load
from notsodeep.errors import InvalidInput
from notsodeep.kernel_solvers import (
    ridge_path,
    solve,
    spectral_density,
    top_eigenpairs,
)
from notsodeep.records import Plotted


@pytest.fixture(scope="module")
def drawn() -> dict[str, Any]:
    """A record for every function that draws one."""
    X = nsd.data.sphere(60, 80, rng=0)
    deq = nsd.DeepEquilibrium("normalized_relu", sigma_a2=0.2)
    K, eq = (
        nsd.kernel(deq, X, convention="preactivation"),
        nsd.sphere_equivalent(deq, X, convention="preactivation"),
    )
    found = nsd.match(nsd.DeepEquilibrium("tanh", 0.2), tau0=1.0, family="hard_tanh")
    certificate = found.certify(X)
    metrics = CollapseMetrics(num_classes=4)
    metrics.update(simplex_etf(4, 6, rng=0), np.arange(4))
    levels = np.logspace(-2.0, 1.0, 8)
    mixture = nsd.data.GaussianMixture([[2.0] + 31 * [0.0], 32 * [0.0]], covariances=[1.0, 1.1])
    relu, counts = nsd.DeepEquilibrium("relu", 0.2).centred(1.0), (24, 24)
    rows, labels = mixture.sample(96, rng=0)
    given = nsd.zoo.load("tanh-digits-64")
    network = nsd.build(nsd.DeepEquilibrium("tanh", 0.2), 80, 32, 2, rng=0)
    settings = nsd.networks.TrainingSettings(epochs=2, learning_rate=0.1)
    halves = np.arange(60) % 2
    run = nsd.networks.train(network, X, halves, settings)
    pixels = load("digits", preprocessing="unit_range")
    return {
        "best_sigma": prediction.best_sigma_a2(
            "relu", mixture, counts, sigma_a2=[0.0, 0.4], ridge=[0.01, 0.1]
        ),
        "diagnosis": nsd.diagnose(given, pixels.X_test[:20], rng=0),
        "front": nsd.compile(given, pixels.X[:200], X_test=pixels.X_test[:60], layers=1).front,
        "kernel_distance": certificate.matched,
        "solve": network.record,
        "training": run,
        "learning_curve": prediction.learning_curve(relu, mixture, [16, 32, 64], ridge=[0.1]),
        "pilot_curve": prediction.pilot_curve(
            nsd.kernel(relu, rows, convention="preactivation"), labels, [0.1]
        ),
        "predicted_scores": nsd.predict_risk(relu, mixture, counts, ridge=[0.1]),
        "risk_curve": nsd.predict_risk(relu, mixture, counts, ridge=[0.01, 0.1, 1.0]),
        "transfer": prediction.transfer(
            {"DEQ": relu, "network": nsd.ExplicitNetwork(["tanh"])},
            rows[:64],
            labels[:64],
            rows[64:],
            labels[64:],
        ),
        "width_curve": prediction.width_curve(
            {"DEQ": relu}, mixture, [64, 128], ridge=0.1, counts=counts
        ),
        "certificate": certificate,
        "collapse": metrics.compute(),
        "comparison": nsd.compare(K, eq),
        "conditions": certificate.conditions,
        "eigenpairs": top_eigenpairs(K, 4),
        "kernel_pair": nsd.kernel(deq, X, convention="preactivation", kind="both"),
        "layer_peeled": layer_peeled([100, 100, 1, 1], budget=0.5),
        "limiting_spectrum": nsd.limiting_spectrum(eq),
        "match": found,
        "monte_carlo": nsd.monte_carlo(nsd.ExplicitNetwork(["tanh"]), X[:5], 30, 3, rng=0),
        "ridge_path": ridge_path(K, X[:, :2], levels),
        "solution": solve(K, X[:, :3], ridge=0.1),
        "spectral_density": spectral_density(K, probes=4, steps=20),
    }


def subclasses(kind: type[Plotted]) -> Iterator[type[Plotted]]:
    for one in kind.__subclasses__():
        yield one
        yield from subclasses(one)


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Find no figure open, whatever ran before, and leave none."""
    plt.close("all")
    yield
    plt.close("all")


def functions_of_records() -> list[str]:
    tools = {"house_style", "new_figure", "save_figure", "svg_text", "themed_svg"}
    names = [name for name in plotting.__all__ if name.islower()]
    return [name for name in names if name not in tools and not name.endswith("_figure")]


@pytest.mark.parametrize("name", functions_of_records())
def test_draws_into_given_axes_and_into_new_ones(name: str, drawn: dict[str, Any]) -> None:
    draw, record = getattr(plotting, name), drawn[name]
    figure, (axes,) = plotting.new_figure()
    assert draw(record, axes) is axes
    assert axes.has_data()
    assert plt.get_fignums() == []
    figure.set_layout_engine("none")  # it would draw all of it twice
    assert len(plotting.svg_text(figure)) > 5000
    own = {"axes.prop_cycle": cycler(color=["#123456", "#654321"]), "font.size": 17.0}
    with plt.rc_context({**own, "figure.figsize": (9.0, 8.0), "figure.facecolor": "#fedcba"}):
        fresh = draw(record)
        assert plt.rcParams["font.size"] == 17.0
    assert plt.get_fignums() == [fresh.get_figure().number]
    assert tuple(fresh.get_figure().get_size_inches()) == (9.0, 8.0)
    assert to_hex(fresh.get_figure().get_facecolor()) == "#fedcba"
    assert fresh.xaxis.label.get_fontsize() == 17.0
    used = {to_hex(line.get_color()) for line in fresh.get_lines()}
    used |= {to_hex(patch.get_facecolor()) for patch in fresh.patches}
    assert not used & {plotting.DEEP, plotting.SHALLOW}


def test_every_record_that_says_so_has_a_drawing() -> None:
    known = set(functions_of_records())
    for kind in subclasses(Plotted):
        assert kind._drawing in known, kind


def test_a_figure_shows_itself_in_a_notebook() -> None:
    assert plotting.new_figure()[0]._repr_png_().startswith(b"\x89PNG")


def test_kernels_between_two_sets_have_no_diagonal() -> None:
    deq = nsd.DeepEquilibrium("tanh", 0.2)
    pair = nsd.kernel(
        deq,
        nsd.data.sphere(9, 4, rng=0),
        nsd.data.sphere(5, 4, rng=1),
        convention="preactivation",
        kind="both",
    )
    axes = plotting.kernel_pair(pair, plotting.new_figure()[1][0])
    assert [t.get_text() for t in axes.get_legend().get_texts()] == ["pairs of samples"]


def test_bars_of_conditions_end_at_the_bound_of_what_holds() -> None:
    conditions = nsd.conditions(nsd.DeepEquilibrium("relu", 0.5), tau0=1.0)
    axes = plotting.conditions(conditions, plotting.new_figure()[1][0])
    lengths = {v.name: bar.get_width() for v, bar in zip(conditions, axes.patches, strict=True)}
    assert lengths["contraction"] == pytest.approx(2.0)  # σa² = 0.5 against 0.25
    assert lengths["uniqueness of τ*"] < 1.0


def test_cosines_of_a_classifier_need_one(drawn: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=r"hold a classifier.*metrics.compute\(W\)"):
        plotting.collapse(drawn["collapse"], vectors="classifier")
    with pytest.raises(InvalidInput, match="Unknown vectors"):
        plotting.collapse(drawn["collapse"], vectors="means")


def test_plotting_needs_no_matplotlib_until_something_is_drawn() -> None:
    script = """
import sys
finders = list(sys.meta_path)
class Without:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.split(".")[0] != "matplotlib":
            found = (finder.find_spec(name, path, target) for finder in finders)
            return next((spec for spec in found if spec is not None), None)
sys.meta_path[:] = [Without]
import notsodeep as nsd
assert nsd.plotting.DEEP.startswith("#")
try:
    nsd.plotting.new_figure()
except nsd.errors.MissingPackage as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "[plot]'" in done.stdout
