"""The layer-peeled model: closed forms, heads, certificates, an independent oracle, limits."""

from __future__ import annotations

import functools
import json
import math
import sys
import time

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_softmax

from notsodeep.collapse import CollapseMetrics, head_gain, layer_peeled, nearest_etf
from notsodeep.collapse.certificate import optimality_certificate
from notsodeep.collapse.sphere_newton import minimise_on_sphere
from notsodeep.errors import InvalidInput, NotConverged, UnknownName

HEADS = [("plain", None), ("explicit", 0.5), ("residual", 0.5), ("deq", 0.5)]
every_head = pytest.mark.parametrize(("head", "bound"), HEADS)
both_budgets = pytest.mark.parametrize("feature_budget", ["class", "sample"])

# Class sizes of every kind: two sizes, three, all different, one class apart, extreme.
COUNTS = [
    (10, 10, 1, 1),
    (100, 100, 100, 10, 10, 1),
    (50, 30, 18, 11, 7, 4, 2),
    (1000, 1, 1, 1, 1),
    (3, 1),
    (1e6, 1e6, 1.0, 1.0, 1.0),
]


def cross_entropy(logits: np.ndarray, counts) -> float:
    shares = np.asarray(counts) / np.sum(counts)
    return float(-shares @ np.diag(log_softmax(logits, axis=1)))


@every_head
@pytest.mark.parametrize("K", [2, 4, 10])
@pytest.mark.parametrize("budget", [0.3, 1.0, 3.0])
@both_budgets
def test_balanced_optimum_is_the_closed_form(head, bound, K, budget, feature_budget) -> None:
    optimum = layer_peeled(
        [20] * K,
        budget=budget,
        head=head,
        spectral_budget=bound,
        feature_budget=feature_budget,
    )
    C = head_gain(head, bound) * budget
    expected = math.log1p((K - 1) * math.exp(-K * C / (K - 1)))
    assert optimum.loss == pytest.approx(expected, rel=1e-10)
    for vectors in (optimum.classifier, optimum.features, optimum.head_output):
        assert nearest_etf(vectors).distance < 1e-7
    assert math.isnan(optimum.minority_cosine)


@every_head
@both_budgets
@pytest.mark.parametrize("counts", COUNTS)
def test_the_record_is_consistent(head, bound, feature_budget, counts) -> None:
    optimum = layer_peeled(
        counts, budget=1.5, head=head, spectral_budget=bound, feature_budget=feature_budget
    )
    K = len(counts)
    shares = np.asarray(counts) / np.sum(counts)
    W, H, Z, M = (
        optimum.classifier,
        optimum.features,
        optimum.head_output,
        optimum.head_matrix,
    )
    identity = np.eye(K)
    G = {"plain": identity, "explicit": M, "residual": identity + M}.get(head)
    G = np.linalg.inv(identity - M) if G is None else G
    np.testing.assert_allclose(H @ G.T, Z, atol=1e-9)
    np.testing.assert_allclose(Z @ W.T, optimum.logits, atol=1e-12)
    assert optimum.loss == pytest.approx(cross_entropy(optimum.logits, counts), rel=1e-12)
    assert optimum.log_loss == pytest.approx(math.log(optimum.loss))
    assert np.sum(W**2) / K == pytest.approx(1.5)
    weights = np.full(K, 1 / K) if feature_budget == "class" else shares
    assert weights @ np.sum(H**2, axis=1) == pytest.approx(1.5)
    assert np.linalg.norm(M, 2) <= (1.0 if bound is None else bound) + 1e-12
    assert optimum.converged
    assert optimum.certificate.certified
    assert optimum.certificate.relative_gap < 1e-8
    assert optimum.certificate.spectral_residual < 1e-5
    assert abs(optimum.certificate.norm_excess) < 1e-9


def test_who_has_the_lower_loss() -> None:
    """A DEQ is below an explicit head of equal spectral budget; it is gain that does it."""
    counts = (50, 50, 50, 5, 5)
    for rho in (0.1, 0.5, 0.9):

        def loss(head, bound) -> float:
            return layer_peeled(counts, budget=1.2, head=head, spectral_budget=bound).loss

        deq = loss("deq", rho)
        assert deq < loss("residual", rho) < loss("explicit", rho)
        assert deq == pytest.approx(loss("explicit", 1 / (1 - rho)), rel=1e-9)
        assert deq == pytest.approx(loss("residual", rho / (1 - rho)), rel=1e-9)
        assert loss("explicit", 1.001 / (1 - rho)) < deq < loss("explicit", 0.999 / (1 - rho))


@pytest.mark.parametrize("counts", COUNTS)
@both_budgets
def test_a_deq_optimum_consists_of_eigenvectors(counts, feature_budget) -> None:
    rho = 0.7
    optimum = layer_peeled(
        counts, budget=1.0, head="deq", spectral_budget=rho, feature_budget=feature_budget
    )
    Z = optimum.head_output
    np.testing.assert_allclose(Z @ optimum.head_matrix.T, rho * Z, atol=1e-9)
    np.testing.assert_allclose(optimum.features, (1 - rho) * Z, atol=1e-12)


def test_truncated_equilibrium() -> None:
    rho, counts = 0.8, (20, 20, 1, 1)
    exact = layer_peeled(counts, budget=1.0, head="deq", spectral_budget=rho)
    losses = []
    for steps in (1, 2, 5, 200):
        optimum = layer_peeled(
            counts, budget=1.0, head="deq", spectral_budget=rho, solver_steps=steps
        )
        assert optimum.gain == pytest.approx(sum(rho**t for t in range(steps)))
        assert optimum.gain <= steps
        z = np.zeros_like(optimum.features)
        for _ in range(steps):
            z = z @ optimum.head_matrix.T + optimum.features
        np.testing.assert_allclose(z, optimum.head_output, atol=1e-9)
        losses.append(optimum.loss)
    assert losses == sorted(losses, reverse=True)
    assert losses[0] == pytest.approx(layer_peeled(counts, budget=1.0).loss, rel=1e-10)
    assert losses[-1] == pytest.approx(exact.loss, rel=1e-10)
    assert head_gain("deq", 0.0, solver_steps=7) == 1.0


class TestCertificate:
    """It accepts the optimum, however it was found, and nothing else."""

    COUNTS = (30, 10, 10, 2)
    BUDGET = 1.4

    def optimum(self, feature_budget: str) -> np.ndarray:
        return layer_peeled(
            self.COUNTS,
            budget=self.BUDGET,
            feature_budget=feature_budget,
        ).logits

    def certificate(self, logits: np.ndarray, feature_budget: str):
        return optimality_certificate(
            logits,
            self.COUNTS,
            budget=self.BUDGET,
            feature_budget=feature_budget,
        )

    @both_budgets
    def test_perturbed_logits_fail(self, feature_budget: str) -> None:
        L = self.optimum(feature_budget)
        assert self.certificate(L, feature_budget).certified
        shares = np.array(self.COUNTS) / sum(self.COUNTS)
        D = np.ones(4) if feature_budget == "class" else np.sqrt(4 * shares)
        rng = np.random.default_rng(0)
        best = cross_entropy(L, self.COUNTS)
        for size in (1e-2, 1e-1, 1.0):
            X = D[:, None] * (L + size * rng.normal(size=(4, 4)))
            X *= 4 * self.BUDGET / np.linalg.norm(X, "nuc")
            wrong = self.certificate(X / D[:, None], feature_budget)
            loss = cross_entropy(X / D[:, None], self.COUNTS)
            assert not wrong.certified
            assert wrong.gap >= loss - best > 0.0  # an upper bound on what is lost
            assert wrong.lower_bound <= best
            assert wrong.spectral_residual > 1e-4

    def test_too_small_and_too_large_logits_fail(self) -> None:
        L = self.optimum("class")
        small = self.certificate(0.99 * L, "class")
        assert not small.certified
        assert small.norm_excess == pytest.approx(-0.01, rel=1e-6)
        large = self.certificate(1.01 * L, "class")
        assert not large.certified
        assert "not admissible" in large.statement
        assert not self.certificate(np.zeros((4, 4)), "class").certified

    def test_the_budgets_are_different_problems(self) -> None:
        assert not self.certificate(self.optimum("class"), "sample").certified
        assert not self.certificate(self.optimum("sample"), "class").certified

    def test_an_etf_is_not_optimal_under_imbalance(self) -> None:
        """Section 6 of the theory: P diag(w) P is no multiple of P."""
        etf = 4 * self.BUDGET / 3 * (np.eye(4) - 0.25)
        assert optimality_certificate(etf, [5] * 4, budget=self.BUDGET).certified
        assert not self.certificate(etf, "class").certified
        assert self.certificate(etf, "class").relative_gap > 1e-2

    def test_another_splitting_of_singular_vectors_fails(self) -> None:
        """Same nuclear norm, same singular values, other directions."""
        L = self.optimum("class")
        Q = np.linalg.qr(np.random.default_rng(1).normal(size=(4, 4)))[0]
        turned = self.certificate(L @ Q, "class")
        assert turned.norm_excess == pytest.approx(0.0, abs=1e-12)
        assert turned.relative_gap > 0.1


def direct_minimum(counts, C: float, feature_budget: str, seed: int = 0) -> float:
    """Minimise over W and H themselves, by BFGS with numerical care but no theory."""
    K = len(counts)
    shares = np.asarray(counts) / np.sum(counts)
    D = np.ones(K) if feature_budget == "class" else np.sqrt(K * shares)

    def objective(x: np.ndarray) -> float:
        W, Y = x.reshape(2, K, K)
        W = W * np.sqrt(K * C) / np.linalg.norm(W)
        Y = Y * np.sqrt(K * C) / np.linalg.norm(Y)
        return cross_entropy((Y / D[:, None]) @ W.T, counts)

    rng = np.random.default_rng(seed)
    return min(
        minimize(objective, rng.normal(size=2 * K * K), method="BFGS", options={"gtol": 1e-7}).fun
        for _ in range(3)
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("counts", "C", "feature_budget"),
    [((9, 3, 1), 1.2, "class"), ((20, 20, 1, 1), 1.5, "sample"), ((8, 1, 1), 2.0, "sample")],
)
def test_direct_minimisation_agrees(counts, C, feature_budget) -> None:
    found = layer_peeled(counts, budget=C, feature_budget=feature_budget).loss
    direct = direct_minimum(counts, C, feature_budget)
    assert found == pytest.approx(direct, rel=1e-6)
    assert found <= direct * (1 + 1e-10)


@pytest.mark.parametrize(
    ("counts", "C", "feature_budget"),
    [
        ((100, 100, 1, 1), 1.0, "class"),
        ((40, 20, 10, 5, 2), 1.5, "class"),
        ((50, 20, 20, 5, 1), 1.2, "sample"),
    ],
)
def test_a_convex_solver_agrees(counts, C, feature_budget) -> None:
    """An interior-point method on the nuclear-norm ball, as an oracle."""
    cvxpy = pytest.importorskip("cvxpy")
    K = len(counts)
    shares = np.asarray(counts) / np.sum(counts)
    D = np.ones(K) if feature_budget == "class" else np.sqrt(K * shares)
    L = cvxpy.Variable((K, K))
    losses = [cvxpy.log_sum_exp(L[k]) - L[k, k] for k in range(K)]
    objective = sum(w * loss for w, loss in zip(shares, losses, strict=True))
    program = cvxpy.Problem(cvxpy.Minimize(objective), [cvxpy.normNuc(cvxpy.diag(D) @ L) <= K * C])
    program.solve(solver="CLARABEL")
    found = layer_peeled(counts, budget=C, feature_budget=feature_budget)
    assert found.loss == pytest.approx(program.value, rel=1e-6)
    centred = L.value - L.value.mean(axis=1, keepdims=True)  # a common shift changes nothing
    np.testing.assert_allclose(found.logits, centred, atol=2e-3)


def test_class_budget_tends_to_an_etf_and_sample_budget_to_seli() -> None:
    counts = np.array([10, 10, 1, 1])
    # SELI (Thrampoulidis et al. 2022): P·diag(√n) = V Λ Uᵀ, W = V Λ^½.
    left, singular, _ = np.linalg.svd((np.eye(4) - 0.25) * np.sqrt(counts))
    gram = (left * singular) @ left.T
    distances: dict[str, list[float]] = {"class": [], "sample": []}
    for C in (5.0, 20.0, 80.0):
        by_class = layer_peeled(counts, budget=C, feature_budget="class")
        by_sample = layer_peeled(counts, budget=C, feature_budget="sample")
        distances["class"].append(nearest_etf(by_class.classifier).distance)
        found = by_sample.classifier @ by_sample.classifier.T
        gap = found / np.linalg.norm(found) - gram / np.linalg.norm(gram)
        distances["sample"].append(float(np.linalg.norm(gap)))
    for values in distances.values():
        ratios = np.array(values[:-1]) / values[1:]
        assert (ratios > 3.0).all()  # like 1/C
    # and not the other way round
    assert nearest_etf(by_sample.classifier).distance > 0.1
    found = by_class.classifier @ by_class.classifier.T
    assert np.linalg.norm(found / np.linalg.norm(found) - gram / np.linalg.norm(gram)) > 0.1


def test_an_imbalanced_optimum_is_no_etf() -> None:
    assert nearest_etf(layer_peeled((2, 1, 1), budget=3.0).features).distance > 1e-3


def test_loss_may_underflow() -> None:
    optimum = layer_peeled([5] * 4, budget=600.0)
    assert optimum.loss == 0.0
    assert optimum.log_loss == pytest.approx(math.log(3) - 800.0, rel=1e-12)
    assert optimum.certificate.certified
    imbalanced = layer_peeled([50, 5, 5, 5], budget=600.0, feature_budget="sample")
    assert imbalanced.certificate.relative_gap < 1e-8
    assert imbalanced.log_loss < -500


def test_nc2_of_imbalanced_optimal_features() -> None:
    """K_A = K_B = 2, R = 10, C = 4, class budget: .199, with the mean of class means as centre."""
    counts = np.array([10, 10, 1, 1])
    optimum = layer_peeled(counts, budget=4.0)
    metrics, y = CollapseMetrics(4), np.repeat(np.arange(4), counts)
    metrics.update(optimum.features[y], y)
    found = metrics.compute(optimum.classifier).overall["nc2_features"]
    assert found == pytest.approx(0.199, abs=5e-4)


def test_two_forms_of_nc3_differ_under_imbalance() -> None:
    counts = np.array([10, 10, 1, 1])
    y = np.repeat(np.arange(4), counts)
    for budget, differ in (("class", False), ("sample", True)):
        optimum = layer_peeled(counts, budget=2.0, feature_budget=budget)
        metrics = CollapseMetrics(4)
        metrics.update(optimum.features[y], y)
        overall = metrics.compute(optimum.classifier).overall
        assert overall["nc3_alignment"] != pytest.approx(overall["nc3_duality"], rel=1e-2)
        assert (overall["nc3_duality"] > 0.3) == differ


def test_speed_and_size() -> None:
    """K = 10 in under a second, whatever the class sizes; measured with room to spare."""
    for counts in ([100] * 5 + [1] * 5, [500 * 100 ** (-k / 9) for k in range(10)]):
        layer_peeled(counts, budget=2.0)
        start = time.perf_counter()
        layer_peeled(counts, budget=2.0)
        assert time.perf_counter() - start < 1.0
    step = layer_peeled([100] * 30 + [1] * 70, budget=3.0)
    assert step.certificate.certified
    assert step.classifier.shape == (100, 100)


@pytest.mark.slow
@both_budgets
def test_a_hundred_classes_all_of_different_size(feature_budget) -> None:
    counts = [500 * 100 ** (-k / 99) for k in range(100)]
    optimum = layer_peeled(counts, budget=2.0, feature_budget=feature_budget)
    assert optimum.certificate.relative_gap < 1e-9


def test_records_print_and_serialise() -> None:
    optimum = layer_peeled((10, 10, 1, 1), budget=2.0, head="deq", spectral_budget=0.5)
    text = str(optimum)
    assert max(map(len, text.splitlines())) <= 79
    assert "gain 2, C = 4" in text
    assert "globally optimal" in text
    form = json.loads(json.dumps(optimum.to_dict(), allow_nan=False))
    assert form["loss"] == optimum.loss
    assert form["certificate"]["certified"] is True
    np.testing.assert_array_equal(form["classifier"], optimum.classifier)


def test_a_vanishing_minority_has_no_cosine() -> None:
    """At a tiny budget only differences of majority classes are worth anything."""
    optimum = layer_peeled((100, 100, 1, 1), budget=0.01)
    assert optimum.rank == 1
    assert math.isnan(optimum.minority_cosine)
    assert math.isnan(layer_peeled((10, 10, 1), budget=2.0).minority_cosine)


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"budget": 0.0}, "budget of layer_peeled must be positive"),
            ({"head": "deq"}, "must be given for the deq head"),
            ({"head": "deq", "spectral_budget": 1.0}, "satisfy 0 ≤ ρ < 1"),
            ({"head": "explicit", "spectral_budget": 0.0}, "positive for an explicit head"),
            ({"head": "residual", "spectral_budget": -0.1}, "not be negative"),
            ({"spectral_budget": 0.5}, "be None for a plain head"),
            ({"solver_steps": 3}, "be None unless head='deq'"),
            (
                {"head": "deq", "spectral_budget": 0.5, "solver_steps": 0},
                "integer of at least 1",
            ),
        ],
    )
    def test_arguments(self, options, message) -> None:
        with pytest.raises(InvalidInput, match=message):
            layer_peeled((4, 3, 2, 1), **{"budget": 1.0, **options})

    def test_counts(self) -> None:
        with pytest.raises(InvalidInput, match="positive sizes of at least two"):
            layer_peeled([5], budget=1.0)
        with pytest.raises(InvalidInput, match="positive sizes of at least two"):
            layer_peeled([5, -1], budget=1.0)

    def test_names(self) -> None:
        with pytest.raises(UnknownName, match="Did you mean 'explicit'"):
            layer_peeled([5, 1], budget=1.0, head="explicite")
        with pytest.raises(UnknownName, match="feature budget"):
            layer_peeled([5, 1], budget=1.0, feature_budget="clas")

    def test_non_convergence_is_never_silent(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A solver cut off after a step ends in a named error that carries the record."""
        cut = functools.partial(minimise_on_sphere, max_steps=1)
        module = sys.modules["notsodeep.collapse.layer_peeled"]
        monkeypatch.setattr(module, "minimise_on_sphere", cut)
        with pytest.raises(NotConverged, match="after 1 steps") as failure:
            layer_peeled([5, 2, 1], budget=1.0)
        assert not failure.value.record.converged
        assert not layer_peeled([5, 2, 1], budget=1.0, raises=False).converged
