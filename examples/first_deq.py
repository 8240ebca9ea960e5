# %% [markdown]
# # Your first DEQ
#
# A deep equilibrium model on handwritten digits, the shallow network that can stand in for it, and
# the evidence. A model is a description: it has no width and no weights, and kernels, matches and
# finite networks read the same object.

# %%
import notsodeep as nsd

deq = nsd.DeepEquilibrium("tanh", sigma_a2=0.2)
data = nsd.data.load("digits", samples=300, rng=0)
print(deq, data.X.shape, data.X_test.shape)

# %% [markdown]
# ## Does the theory apply?
#
# Each bar is a condition, its value in units of its bound. One that fails is a reason to read the
# certificate below with more care; nothing stops because of it.

# %%
conditions = nsd.conditions(deq, data.X)
axes = conditions.plot()

# %% [markdown]
# ## The exact kernels
#
# Both limits at infinite width, without any sampling: of the read-out's training (conjugate) and of
# the training of all weights (tangent).

# %%
pair = nsd.kernel(deq, data.X, convention="feature", kind="both")
axes = pair.plot()

# %% [markdown]
# ## The shallow network
#
# A network with one hidden layer of hard tanh, designed so that its kernel is the DEQ's. A record
# at the end of a cell shows itself as a table; printed, it is a text.

# %%
match = nsd.match(deq, data.X, family="hard_tanh", refine=True)
match

# %% [markdown]
# ## The certificate
#
# On rows that were not used for the match. Read the gap next to that of the unmatched network,
# which has the DEQ's own activation in one explicit layer.

# %%
certificate = match.certify(data.X_test, data.y_test)
print(certificate)

# %%
figure = nsd.plotting.match_figure(match, certificate)
figure.savefig("first_deq.png", dpi=150)
figure

# %% [markdown]
# ## Use it
#
# `nsd.compile` does all of this, draws and times finite networks of both kinds, and says by a
# printed rule whether one may replace the other. `compiled.network` is a torch module, and
# `compiled.report("report.html")` a page to send to others.

# %%
compiled = nsd.compile(deq, data.X, data.y, X_test=data.X_test, y_test=data.y_test, seeds=2)
compiled
