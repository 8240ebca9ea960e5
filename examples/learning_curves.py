# %% [markdown]
# # Learning curves before training
#
# Test errors of a DEQ from class means and covariances alone: no sample, no kernel matrix. Then
# samples are drawn, and the same errors are measured with exact kernels.

# %%
import matplotlib.pyplot as plt
import numpy as np

import notsodeep as nsd

mixture = nsd.data.GaussianMixture([[2.0] + 127 * [0.0], 128 * [0.0]], covariances=[1.0, 1.2])
deq = nsd.DeepEquilibrium("relu", sigma_a2=0.2).centred(1.0)

# %% [markdown]
# ## Errors over the ridge, and over the number of samples

# %%
risk = nsd.predict_risk(deq, mixture, counts=(128, 128))
best = risk.best()
print(best)
axes = risk.plot()

# %%
sizes = np.geomspace(32, 1024, 12).astype(int)
curve = nsd.prediction.learning_curve(deq, mixture, sizes, ridge=[1e-3, best.value])

# %% [markdown]
# ## Measured
#
# Kernel ridge regression on the labels ±1, one draw for each size.


# %%
def measured(size: int, ridge: float) -> float:
    """Test error of a regression with the exact kernel on one draw."""
    (X, y), (Z, t) = mixture.sample(size, rng=int(size)), mixture.sample(1000, rng=1)
    gram = nsd.kernel(deq, X, convention="feature")
    weights = np.linalg.solve(gram + ridge * np.eye(size), 2.0 * y - 1.0)
    scores = nsd.kernel(deq, Z, X, convention="feature") @ weights
    return float(np.square(scores - (2.0 * t - 1.0)).mean())


some = sizes[::3]
axes = curve.plot()
for ridge, marker in zip(curve.ridges, "os", strict=True):
    errors = [measured(size, ridge) for size in some]
    axes.plot(some / curve.dimension, errors, marker, color="black", label=f"measured, {ridge:.2g}")
    print(f"ridge {ridge:.2g}, measured at n =", *some, "is", *(f"{e:.3f}" for e in errors))
axes.legend()
plt.gcf().savefig("learning_curves.png", dpi=150)

# %% [markdown]
# ## Which recurrence for these data?
#
# The same prediction, searched over σₐ² and the ridge.

# %%
sigmas = np.linspace(0.0, 0.8, 5)
found = nsd.prediction.best_sigma_a2("relu", mixture, counts=(128, 128), sigma_a2=sigmas)
axes = found.plot()
