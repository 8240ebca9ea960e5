"""Read-outs over the width lie on lines that were predicted from exact kernels."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import notsodeep as nsd
from notsodeep.compilation.settings import CompileSettings
from notsodeep.compilation.widths import width_record
from notsodeep.prediction import WidthCurve

DEQ = nsd.DeepEquilibrium("relu", sigma_a2=0.8)


@pytest.fixture(scope="module")
def evidence() -> tuple[CompileSettings, nsd.matching.Match, Any]:
    data = nsd.data.load("digits", samples=300, rng=0)
    found = nsd.match(DEQ, data.X, family="leaky_relu", convention="feature")
    return CompileSettings(DEQ, width=128), found, data


def test_measured_read_outs_lie_on_the_predicted_lines(evidence: Any) -> None:
    record = width_record(*evidence)
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    curve = WidthCurve.from_dict(record["predicted"])
    assert record["widths"][-2:] == [64, 128]  # at 16 some of these DEQs do not come to rest
    assert set(record["widths"]) < {16, 32, 64, 128}
    assert curve.widths[0] == 16
    assert curve.widths[-1] == 512
    for role, values in record["measured"].items():
        at = np.interp(record["widths"], curve.widths, curve.accuracy[role])
        errors = np.hypot(record["errors"][role], 0.01)
        assert (np.abs(values - at) < 4.0 * errors + 0.02).all()
        assert curve.accuracy[role][0] < 0.8 < curve.accuracy[role][-1] < curve.limit_accuracy[role]
    assert (curve.effective_width["deq"] < curve.effective_width["matched"]).all()


def test_what_the_law_is_not_for_is_said(evidence: Any) -> None:
    settings, found, data = evidence
    assert "all weights" in width_record(replace(settings, train="all"), found, data)["reason"]
    two = nsd.match(DEQ, data.X, family=nsd.matching.LeakyReLU(layers=2), convention="feature")
    assert "one hidden layer" in width_record(settings, two, data)["reason"]
