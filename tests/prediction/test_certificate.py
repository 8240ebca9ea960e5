"""A certificate says what would be predicted, and when a plain network would do."""

from __future__ import annotations

import json

import notsodeep as nsd
from notsodeep.matching import Certificate
from risk_cases import mixture


def test_a_certificate_with_a_mixture() -> None:
    data = mixture("weak", 100)
    X, y = data.sample(120, rng=0)
    found = nsd.match(nsd.DeepEquilibrium("relu", 0.2), X, family="leaky_relu")
    plain = found.certify(X, y)
    assert plain.predicted is None
    certificate = found.certify(X, y, mixture=data)
    assert certificate.predicted is not None
    assert certificate.predicted.names == ("deq", "matched", "baseline")
    assert "would do as well" in str(certificate)
    again = Certificate.from_dict(json.loads(json.dumps(certificate.to_dict())))
    assert again.predicted is not None
    assert again.predicted.verdict == certificate.predicted.verdict
