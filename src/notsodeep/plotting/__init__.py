"""Figures: pure functions of records.

A function named after a record draws it into `ax`, or into a new figure without one, and returns
the axes; ``record.plot(ax)`` is the same.  Functions that end in ``_figure`` make a whole figure.
Matplotlib, the extra ``plot``, is imported when something is drawn.

Examples
--------
>>> import notsodeep as nsd
>>> found = nsd.match(nsd.DeepEquilibrium("tanh", sigma_a2=0.2), tau0=1.0, family="hard_tanh")
>>> figure, (left, right) = nsd.plotting.new_figure(2)
>>> axes = [nsd.plotting.match(found, left), nsd.plotting.conditions(found.conditions, right)]
"""

from __future__ import annotations

from notsodeep.plotting.canvas import (
    DEEP,
    MUTED,
    SHALLOW,
    house_style,
    new_figure,
    save_figure,
    svg_text,
    themed_svg,
)
from notsodeep.plotting.class_geometry import collapse, layer_peeled, simplex_figure
from notsodeep.plotting.kernel_entries import kernel_pair, monte_carlo
from notsodeep.plotting.matches import (
    certificate,
    conditions,
    kernel_distance,
    match,
    match_figure,
)
from notsodeep.plotting.paths import ridge_path, solution, solve, training
from notsodeep.plotting.predictions import (
    best_sigma,
    learning_curve,
    pilot_curve,
    predicted_scores,
    risk_curve,
    transfer,
    width_curve,
)
from notsodeep.plotting.spectra import (
    comparison,
    eigenpairs,
    limiting_spectrum,
    spectral_density,
    spectrum_figure,
)
from notsodeep.plotting.trained import diagnosis, diagnosis_figure, front

__all__ = [
    "DEEP",
    "MUTED",
    "SHALLOW",
    "best_sigma",
    "certificate",
    "collapse",
    "comparison",
    "conditions",
    "diagnosis",
    "diagnosis_figure",
    "eigenpairs",
    "front",
    "house_style",
    "kernel_distance",
    "kernel_pair",
    "layer_peeled",
    "learning_curve",
    "limiting_spectrum",
    "match",
    "match_figure",
    "monte_carlo",
    "new_figure",
    "pilot_curve",
    "predicted_scores",
    "ridge_path",
    "risk_curve",
    "save_figure",
    "simplex_figure",
    "solution",
    "solve",
    "spectral_density",
    "spectrum_figure",
    "svg_text",
    "themed_svg",
    "training",
    "transfer",
    "width_curve",
]
