# %% [markdown]
# # Kernels and spectra for a paper figure
#
# Eigenvalues of a DEQ's exact kernel on a Gaussian mixture, with the limiting law that predicts
# them: a histogram and a curve that know nothing of each other.

# %%
import matplotlib.pyplot as plt

import notsodeep as nsd

mixture = nsd.data.paper_mixture(dimension=1000)
X, y = mixture.sample(800, rng=0)
stats = mixture.statistics(X, y)
deq = nsd.DeepEquilibrium("relu", sigma_a2=0.2).centred(stats.tau0)

# %% [markdown]
# ## Kernel, equivalent, law
#
# The equivalent is a multiple of the Gram matrix, plus low rank, plus a multiple of the identity;
# the law knows the population and φ, and no sample.

# %%
kernel = nsd.kernel(deq, X, convention="preactivation")
equivalent = nsd.equivalent(deq, X, y, mixture, convention="preactivation")
law = nsd.limiting_spectrum(equivalent)
comparison = nsd.compare(kernel, equivalent, law)
print(comparison)

# %% [markdown]
# ## In your own style
#
# Every `plot` draws into the axes it is given, in the style that is in force: yours.

# %%
paper = {"font.family": "serif", "font.size": 8, "mathtext.fontset": "cm", "lines.linewidth": 1}
with plt.rc_context(paper):
    figure, (left, right) = plt.subplots(1, 2, figsize=(5.5, 2.1), layout="constrained")
    comparison.plot(left)
    nsd.kernel_solvers.top_eigenpairs(kernel, 6).plot(right)
    figure.savefig("spectrum.pdf")

# %% [markdown]
# ## Or in ours
#
# Whole figures with several panels are in `nsd.plotting`.

# %%
with nsd.plotting.house_style():
    figure = nsd.plotting.spectrum_figure(comparison, "conjugate kernel of a ReLU DEQ")
    figure.savefig("spectrum.png", dpi=150)
figure
