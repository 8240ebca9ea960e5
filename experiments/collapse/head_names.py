"""The heads that are compared when networks are trained: names, labels and formulas.

Every head takes the features h of a backbone to z, has one d × d matrix, and applies one activation
φ that is 1-Lipschitz with φ(0) = 0.  At the spectral budget s the first three have the gains s,
1 + s and (1 − s^T)/(1 − s), all others 1/(1 − s).
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

HeadKind = Literal[
    "explicit",
    "residual",
    "deq_truncated",
    "deq",
    "deq_monotone",
    "explicit_matched",
    "explicit_started",
    "explicit_inverse",
]
HEAD_KINDS: tuple[HeadKind, ...] = get_args(HeadKind)

FIVE_HEADS: tuple[HeadKind, ...] = (
    "explicit",
    "residual",
    "deq_truncated",
    "deq",
    "explicit_matched",
)
"""The DEQ, its truncation, and the controls of budget and gain."""

HeadActivation = Literal["identity", "tanh", "relu"]
HEAD_ACTIVATIONS: tuple[HeadActivation, ...] = get_args(HeadActivation)

HeadSolver = Literal["paper", "strict"]
HEAD_SOLVERS: tuple[HeadSolver, ...] = get_args(HeadSolver)


class HeadForm(NamedTuple):
    """What a head is called and what it computes.

    Attributes
    ----------
    label : str
        In texts and pictures.
    formula, bound : str
        z, and the set of its matrices.
    """

    label: str
    formula: str
    bound: str


HEAD_FORMS: dict[str, HeadForm] = {
    "explicit": HeadForm("explicit", "z = φ(M h)", "‖M‖ ≤ s"),
    "plain": HeadForm("plain", "z = h", ""),
    "residual": HeadForm("residual", "z = φ(h + M h)", "‖M‖ ≤ s"),
    "deq_truncated": HeadForm("truncated DEQ", "T steps of z ← φ(A z + h)", "‖A‖ ≤ s"),
    "deq": HeadForm("DEQ", "z = φ(A z + h)", "‖A‖ ≤ s"),
    "deq_monotone": HeadForm("monotone DEQ", "z = φ(A z + h)", "(A + Aᵀ)/2 ≤ s"),
    "explicit_matched": HeadForm("explicit, gain of the DEQ", "z = φ(M h)", "‖M‖ ≤ 1/(1 − s)"),
    "explicit_started": HeadForm(
        "explicit, gain and start of the DEQ", "z = φ(M h)", "‖M‖ ≤ 1/(1 − s)"
    ),
    "explicit_inverse": HeadForm(
        "inverse, gain and start of the DEQ", "z = φ(B⁻¹ h)", "‖B⁻¹‖ ≤ 1/(1 − s)"
    ),
}
"""In the order of tables and legends; "plain" is the head of the layer-peeled model alone."""

HEAD_LABELS = {name: form.label for name, form in HEAD_FORMS.items()}
