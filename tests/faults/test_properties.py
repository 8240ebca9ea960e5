"""What holds for any samples, any record and any command line."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import notsodeep as nsd
from notsodeep.cli.main import main
from notsodeep.errors import NotSoDeepError

MODELS = (
    nsd.DeepEquilibrium("relu", 0.2),
    nsd.DeepEquilibrium("tanh", 0.3),
    nsd.DeepEquilibrium("hard_tanh", 0.2).centred(1.0),
    nsd.ExplicitNetwork(["relu", "erf"]),
)
# Any doubles within six decades, zeros, repeats and opposites among them.
entries = st.one_of(st.just(0.0), st.floats(1e-3, 1e3), st.floats(-1e3, -1e-3))
samples = st.tuples(st.integers(2, 5), st.integers(1, 3)).flatmap(
    lambda shape: arrays(np.float64, shape, elements=entries, fill=st.just(1.0))
)


@given(samples, st.sampled_from(MODELS), st.randoms(use_true_random=False))
@settings(max_examples=25)
def test_kernels_of_any_samples(X: np.ndarray, model: Any, random: Any) -> None:
    """Symmetric, positive semi-definite, bounded by the diagonal, and without an order of rows."""
    order = list(range(len(X)))
    random.shuffle(order)
    pair, shuffled = (
        nsd.kernel(model, X, convention="preactivation", kind="both"),
        nsd.kernel(model, X[order], convention="preactivation", kind="both"),
    )
    for name in ("ck", "ntk"):
        kernel = getattr(pair, name)
        size = float(np.abs(kernel).max())
        diagonal = np.sqrt(np.diag(kernel))
        assert np.array_equal(kernel, kernel.T)
        assert (np.abs(kernel) <= np.outer(diagonal, diagonal) * (1 + 1e-9) + 1e-13 * size).all()
        assert np.linalg.eigvalsh(kernel).min() >= -1e-11 * size
        np.testing.assert_allclose(
            getattr(shuffled, name), kernel[np.ix_(order, order)], rtol=1e-9, atol=1e-12 * size
        )


@given(
    st.sampled_from(["relu", "tanh", "erf", "swish"]),
    st.floats(0.0, 0.5),
    st.floats(0.2, 4.0),
    st.sampled_from(["leaky_relu", "hard_tanh"]),
)
@settings(max_examples=12)
def test_match_records_are_plain_json(name: str, sigma: float, tau0: float, family: str) -> None:
    """A record says all there is, in JSON, whether there is a network or not."""
    found = nsd.match(nsd.DeepEquilibrium(name, sigma), tau0=tau0, family=family)
    record = found.to_dict()
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert nsd.DeepEquilibrium.from_dict(record["model"]) == found.model
    assert (record["fitted"] is None) == (found.fitted is None)
    if found.fitted is not None:
        assert nsd.ExplicitNetwork.from_dict(record["fitted"]) == found.network


descriptions = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["kind", "activation", "sigma_a2", "name", "parameters", "x"]), inner
        ),
    ),
    max_leaves=6,
)


@given(descriptions)
def test_stored_descriptions_are_read_or_refused(content: Any) -> None:
    for read in (nsd.DeepEquilibrium.from_dict, nsd.ExplicitNetwork.from_dict):
        with pytest.raises(NotSoDeepError):
            read(content)


OPTIONS = ("--activation", "--sigma-a2", "--kind", "--kink", "--dtype", "--config", "--json")
words = st.one_of(
    st.sampled_from(["kernel", "diagnose", "report", "data", "list", "compile", "--help", "relu"]),
    st.sampled_from(OPTIONS),
    st.sampled_from(["nan", "inf", "-1", "1e400", "0x10", "", "~", "..", "\u202e", "%s", "{0}"]),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6),
)


def exit_code(arguments: list[str]) -> Any:
    with mock.patch.object(sys, "argv", ["notsodeep", *arguments]):
        try:
            main()
        except SystemExit as end:
            return end.code
    raise AssertionError("the command line did not end")


@given(st.lists(words, max_size=5))
@settings(max_examples=60)
def test_any_command_line_ends_without_a_traceback(arguments: list[str]) -> None:
    """Commands that would work for long are kept from it by an option they do not have."""
    assert exit_code([*arguments, "--no-such-option"]) in (0, 1, 2)


@given(
    st.lists(st.tuples(st.sampled_from(OPTIONS[:5]), words), min_size=1, max_size=3),
)
@settings(max_examples=25)
def test_any_values_of_options_end_without_a_traceback(
    pairs: list[tuple[str, str]],
) -> None:
    words = [word for pair in pairs for word in pair]
    with tempfile.TemporaryDirectory() as directory:
        out = str(Path(directory) / "k.npy")
        assert exit_code(["kernel", "--samples", "20", "--out", out, *words]) in (0, 1, 2)
