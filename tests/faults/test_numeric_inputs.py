"""Samples that are not what one hopes for: refused by name, or computed to a finite result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

import notsodeep as nsd
from notsodeep.errors import InvalidInput, NotConverged
from public_calls import BASE, CALLS, DEQ, ESTIMATORS, FEATURES, KERNELS, OTHERS, ROWS


def with_entry(value: float) -> np.ndarray:
    X = BASE.copy()
    X[2, 3] = value
    return X


def with_row(row: Any) -> np.ndarray:
    X = BASE.copy()
    X[1] = row
    return X


UNUSABLE: dict[str, Any] = {
    "nan": with_entry(np.nan),
    "inf": with_entry(np.inf),
    "minus inf": with_entry(-np.inf),
    "no features": np.empty((ROWS, 0)),
    "huge": with_entry(1e61),
    "squares overflow": BASE * 1e200,
    "complex": BASE + 0j,
    "ragged": [[1.0, 2.0], [3.0]],
    "vector": BASE[0],
    "cube": BASE[:, :, None],
    "nothing": None,
}
WRONG_KINDS: dict[str, Any] = {
    "objects": BASE.astype(object),
    "strings": BASE.astype(str),
    "dates": np.zeros((ROWS, FEATURES), "datetime64[s]"),
}
EMPTY = np.empty((0, FEATURES))
each_call = pytest.mark.parametrize("call", CALLS)


@each_call
@pytest.mark.parametrize("fault", UNUSABLE)
def test_unusable_samples_are_refused(call: str, fault: str) -> None:
    if (call, fault) == ("cross kernel", "nothing"):
        return  # Y=None means the kernel of X with itself
    with pytest.raises(ValueError) as refusal:  # noqa: PT011  # scikit-learn has words of its own
        CALLS[call](UNUSABLE[fault])
    if call not in ESTIMATORS:
        assert isinstance(refusal.value, InvalidInput)
        assert " must " in str(refusal.value)


@pytest.mark.parametrize("call", {**KERNELS, **OTHERS})
@pytest.mark.parametrize("fault", WRONG_KINDS)
def test_wrong_kinds_are_refused(call: str, fault: str) -> None:
    with pytest.raises(InvalidInput, match="hold real numbers"):
        CALLS[call](WRONG_KINDS[fault])


@each_call
def test_no_samples_are_refused(call: str) -> None:
    with pytest.raises(ValueError, match=r"at least|minimum"):
        CALLS[call](EMPTY)


@pytest.mark.parametrize("call", [*OTHERS, *ESTIMATORS])
def test_one_sample_is_not_enough(call: str) -> None:
    with pytest.raises(ValueError, match=r"at least|minimum|statistics|samples"):
        CALLS[call](BASE[:1])


@pytest.mark.parametrize("call", KERNELS)
def test_kernels_of_one_sample(call: str) -> None:
    alone, among = CALLS[call](BASE[:1]), CALLS[call](BASE)
    np.testing.assert_allclose(alone[0, 0], among[0, 0], rtol=1e-12)


USABLE: dict[str, np.ndarray] = {
    "zero row": with_row(0.0),
    "denormal row": with_row(5e-324),
    "tiny row": with_row(1e-200),
    "large row": with_row(BASE[1] * 1e12),
    "duplicates": np.repeat(BASE[:4], 2, axis=0),
    "antipodes": np.vstack([BASE[:4], -BASE[:4]]),
    "float16": BASE.astype(np.float16),
    "float32": BASE.astype(np.float32),
    "long double": BASE.astype(np.longdouble),
    "integers": np.rint(BASE * 10).astype(np.int8),
    "booleans": BASE > 0,
    "Fortran order": np.asfortranarray(BASE),
    "negative strides": BASE[::-1, ::-1],
}


@each_call
@pytest.mark.parametrize("kind", USABLE)
def test_usable_samples_give_what_their_doubles_give(call: str, kind: str) -> None:
    if call == "equivalent" and kind not in ("long double", "Fortran order"):
        return  # statistics must be those of the samples
    if (call, kind) == ("CollapseMetrics.update", "duplicates"):
        return  # the two classes are the same: there is no NC1, which is None
    X = USABLE[kind]
    found = np.asarray(CALLS[call](X))
    expected = np.asarray(CALLS[call](np.array(X, dtype=np.float64, order="C")))
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-12 * np.abs(expected).max())


@pytest.mark.parametrize("call", KERNELS)
def test_equal_samples_have_equal_rows(call: str) -> None:
    kernel = np.asarray(CALLS[call](USABLE["duplicates"]))
    scale = np.abs(kernel).max()
    np.testing.assert_allclose(kernel[::2], kernel[1::2], rtol=0, atol=1e-13 * scale)


def test_opposite_samples_of_an_odd_activation() -> None:
    kernel = nsd.kernel(
        nsd.DeepEquilibrium("tanh", 0.2), USABLE["antipodes"], convention="preactivation"
    )
    np.testing.assert_allclose(kernel[:4, 4:], -kernel[:4, :4], rtol=0, atol=1e-14)
    assert np.linalg.eigvalsh(kernel).min() > -1e-14


@pytest.mark.parametrize("row", ["zero row", "denormal row", "tiny row"])
def test_a_row_that_is_nearly_zero_counts_as_one_of_norm_1e30(row: str) -> None:
    for kernel in (
        nsd.kernel(DEQ, USABLE[row], convention="preactivation"),
        nsd.kernel(DEQ, USABLE[row], convention="preactivation", kind="ntk"),
    ):
        assert np.abs(kernel[1]).max() < 1e-30


@pytest.mark.parametrize("call", ["kernel", "tangent kernel", "KernelOperator"])
def test_kernels_refuse_data_that_is_nearly_zero_altogether(call: str) -> None:
    with pytest.raises(InvalidInput, match="above 1e-15 in size, or be zero"):
        CALLS[call](BASE * 1e-20)
    assert np.isfinite(CALLS[call](BASE * 0.0)).all()


@pytest.mark.parametrize("call", ["match", "MixtureStatistics.estimate", "CollapseMetrics.update"])
def test_data_whose_powers_vanish_is_refused(call: str) -> None:
    with pytest.raises(InvalidInput, match="above 1e-60 in size, or be zero"):
        CALLS[call](BASE * 1e-200)


@pytest.mark.parametrize("factor", [1e-13, 1e50])
def test_units_do_not_matter_within_the_range(factor: float) -> None:
    kernel = nsd.kernel(DEQ, BASE * factor, convention="preactivation", kind="ntk") / factor**2
    np.testing.assert_allclose(
        kernel, nsd.kernel(DEQ, BASE, convention="preactivation", kind="ntk"), rtol=1e-12
    )
    assert CALLS["CollapseMetrics.update"](BASE * factor) == pytest.approx(
        CALLS["CollapseMetrics.update"](BASE), rel=1e-9
    )


FORWARD = torch.tensor(BASE, dtype=torch.float32)


def equilibrium_network() -> Any:
    return nsd.build(DEQ, FEATURES, 6, 2, rng=0).eval()


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (BASE, "be a tensor of torch.float32"),
        (BASE.tolist(), "be a tensor of torch.float32"),
        (FORWARD.double(), "be a tensor of torch.float32"),
        (FORWARD.half(), "be a tensor of torch.float32"),
        (FORWARD.int(), "be a tensor of torch.float32"),
        (FORWARD + 0j, "be a tensor of torch.float32"),
        (FORWARD[:, :2], "have 5 features"),
        (FORWARD * torch.nan, "be finite"),
        (FORWARD / 0.0, "be finite"),
        (FORWARD * 3e38, "be finite"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_networks_refuse_what_they_cannot_solve(X: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        equilibrium_network()(X)


def test_networks_take_no_rows_one_row_and_zeros() -> None:
    net = equilibrium_network()
    assert net(FORWARD[:0]).shape == (0, 2)
    torch.testing.assert_close(net(FORWARD[:1]), net(FORWARD)[:1])
    assert torch.equal(net(FORWARD * 0.0), torch.zeros(ROWS, 2))


def test_denormal_numbers_are_solved_or_the_failure_is_named() -> None:
    """Single precision is a grid of 1.4e-45 here; a ReLU network is homogeneous."""
    net = equilibrium_network()
    try:
        found = net(FORWARD * 1e-42)
    except NotConverged as error:
        assert "was not found" in str(error)  # noqa: PT017
    else:
        assert (found - 1e-42 * net(FORWARD)).abs().max() < 1e-43


def test_an_explicit_network_passes_nan_on_as_torch_does() -> None:
    net = nsd.build(nsd.ExplicitNetwork(["relu"]), FEATURES, 6, 2, rng=0)
    X = FORWARD.clone()
    X[2, 3] = torch.nan
    finite = net(X).isfinite().all(dim=1)
    assert finite.tolist() == [row != 2 for row in range(ROWS)]


def test_sparse_rows_are_rejected_with_the_call_that_makes_them_dense() -> None:
    with pytest.raises(InvalidInput, match=r"be a dense array.*Pass X\.toarray\(\)"):
        nsd.kernel(DEQ, csr_array(BASE), convention="preactivation")


def test_a_message_repeats_no_whole_array() -> None:
    with pytest.raises(InvalidInput, match="sigma_a2") as caught:
        nsd.DeepEquilibrium("tanh", sigma_a2=list(range(5000)))  # type: ignore[arg-type]
    message = str(caught.value)
    assert len(message) < 600
    assert "[0, 1, 2" in message
    assert "4998, 4999]" in message
