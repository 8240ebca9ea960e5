# %% [markdown]
# # DEQ kernels in scikit-learn
#
# Handwritten digits with the exact kernel of a DEQ, and with the shallow network that stands in for
# it. Both are ordinary estimators: pipelines, grid searches and cross-validation work.

# %%
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from notsodeep.estimators import CompiledClassifier, EquilibriumKernelClassifier

X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(
    X, y, train_size=500, test_size=400, random_state=0
)

# %% [markdown]
# ## The exact kernel
#
# The exact leave-one-out error of every ridge, from one eigendecomposition, chooses the ridge.

# %%
kernel = EquilibriumKernelClassifier("tanh", sigma_a2=0.2, ridge="loo", convention="preactivation")
kernel.fit(X_train, y_train)
print(f"ridge {kernel.ridge_:.2g}, accuracy {kernel.score(X_test, y_test):.3f}")

# %% [markdown]
# ## The shallow network

# %%
compiled = CompiledClassifier("tanh", sigma_a2=0.2, family="hard_tanh", random_state=0)
compiled.fit(X_train, y_train)
print(f"{compiled.match_.network}, accuracy {compiled.score(X_test, y_test):.3f}")
axes = compiled.match_.plot()

# %% [markdown]
# ## What it gets wrong
#
# Each dot is a fit and 400 predictions; the curve is one fit.

# %%
ridges = kernel.ridges_[::20]
targets = np.where(y_test[:, None] == kernel.classes_, 1.0, -1.0)
errors = []
for ridge in ridges:
    one = EquilibriumKernelClassifier(
        "tanh", sigma_a2=0.2, ridge=float(ridge), convention="preactivation"
    )
    outputs = one.fit(X_train, y_train).decision_function(X_test)
    errors.append(np.square(outputs - targets).mean())

# %%
guess = kernel.predict(X_test)
wrong = np.flatnonzero(guess != y_test)[:9]
figure = plt.figure(figsize=(8.8, 3.4), layout="constrained")
left, right = figure.subfigures(1, 2)
axes = left.subplots()
axes.loglog(kernel.ridges_, kernel.ridge_scores_, label="leave-one-out, one fit")
axes.loglog(ridges, errors, "ko", ms=4, label="new digits, one fit each")
axes.axvline(kernel.ridge_, color="grey", linewidth=1)
axes.set_xlabel("ridge")
axes.set_ylabel("mean squared error")
axes.legend()
for row, panel in zip(wrong, right.subplots(3, 3).flat, strict=False):
    panel.imshow(X_test[row].reshape(8, 8), cmap="gray_r")
    panel.set_title(f"{y_test[row]}, taken for {guess[row]}", fontsize="small")
for panel in right.axes:
    panel.set_axis_off()
figure.savefig("kernel_classifier.png", dpi=150)
