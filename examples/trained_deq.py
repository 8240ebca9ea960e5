# %% [markdown]
# # A DEQ you trained
#
# An equilibrium network z = φ(Wz + Ux + b) with its own weights: does it settle, in how many steps,
# and which explicit layers decide as it does? One from the zoo stands for yours, which is
# `nsd.EquilibriumCell.from_weights(W, U, b, "tanh", readout=(C, c))`, or `from_module(module)`.

# %%
import matplotlib.pyplot as plt
import torch

import notsodeep as nsd
from notsodeep.data import load

cell = nsd.zoo.load("tanh-digits-64")
data = load("digits", preprocessing="unit_range")  # pixels in [0, 1], as it was trained
print(cell, "out of", *nsd.zoo.names())

# %% [markdown]
# ## Ask what it is
#
# It is iterated from several starts. The rule behind the verdict is printed with it.

# %%
found = nsd.diagnose(cell, data.X_test, rng=0)
print(found)

# %%
figure = nsd.plotting.diagnosis_figure(found)
figure

# %% [markdown]
# ## Make it explicit
#
# Layers are fitted by least squares, one after the other, without labels. Fidelity is agreement
# with the DEQ itself on rows that were set apart, with a lower 95 % bound; labels are used for the
# accuracies alone.

# %%
compiled = nsd.compile(cell, data.X[:800], layers=3, X_test=data.X_test, y_test=data.y_test)
print(compiled)

# %%
figure = compiled.plot()
figure.savefig("trained_deq.png", dpi=150)
figure

# %% [markdown]
# ## Or the DEQ's own class, for less
#
# The hybrid runs the layers, stops where the class is proved, and solves the other rows.

# %%
hybrid = compiled.hybrid()
logits = hybrid(torch.as_tensor(data.X_test))
record = hybrid.last_record
axes = plt.subplots()[1]
axes.bar(range(1, 1 + len(record.certified_after)), record.certified_after)
axes.set_xlabel("layer")
axes.set_ylabel("share of rows proved so far")
print(f"{record.mean_steps:.2f} solver steps a row, {record.uncertified} rows without a proof")
