# %% [markdown]
# # Neural collapse in your own loop
#
# Late in training the features of a class shrink to their mean (NC1), the means become a simplex
# (NC2), and the classifier turns to them (NC3). Here they are measured in a plain PyTorch loop,
# batch by batch, with a torchmetrics metric that keeps no samples.

# %%
import matplotlib.pyplot as plt
import torch
from torch import nn

import notsodeep as nsd
from notsodeep.collapse.torchmetrics_wrapper import NeuralCollapse

torch.manual_seed(0)
data = nsd.data.load("digits", samples=600, rng=0)
X, y = torch.as_tensor(data.X, dtype=torch.float32), torch.as_tensor(data.y)
widths = (64, 128, 128, 128)
hidden = (nn.Sequential(nn.Linear(d, 128), nn.BatchNorm1d(128), nn.ReLU()) for d in widths)
body = nn.Sequential(*hidden, nn.Linear(128, 64))
head = nn.Linear(64, 10)

# %% [markdown]
# ## The loop
#
# Three lines of it are ours. The classifier is read when the measures are computed, so that it may
# go on training.

# %%
collapse = NeuralCollapse(10, 64, classifier=lambda: (head.weight, head.bias))
weights = [*body.parameters(), *head.parameters()]
descent = torch.optim.SGD(weights, lr=0.1, momentum=0.9, weight_decay=2e-3)
history = []
for _ in range(100):
    for rows in torch.randperm(len(X)).split(100):
        features = body(X[rows])
        loss = nn.functional.cross_entropy(head(features), y[rows])
        descent.zero_grad()
        loss.backward()
        descent.step()
        collapse.update(features.detach(), y[rows])
    history.append({name: float(value) for name, value in collapse.compute().items()})
    collapse.reset()
print({name: round(value, 3) for name, value in history[-1].items() if name.startswith("nc")})

# %% [markdown]
# `compute` returns a dictionary of tensors, for `log_dict` of Lightning or any logger;
# `collapse.report` is the whole report, with the reason for every number that is missing.

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9.0, 3.6), layout="constrained")
for name, words in {
    "nc1_trace_ratio": "NC1, tr S_W/tr S_B",
    "nc2_features": "NC2 of the class means",
    "nc2_classifier": "NC2 of the classifier",
    "nc3_duality": "NC3, means against classifier",
}.items():
    left.semilogy([epoch[name] for epoch in history], label=words)
left.set_xlabel("epoch")
left.legend(fontsize="small")
left.set_ylim(top=10.0)
collapse.report.plot(right)
figure.savefig("collapse_in_a_loop.png", dpi=150)

# %% [markdown]
# ## In Lightning
#
# ```python
# class Classifier(lightning.LightningModule):
#     def __init__(self):
#         super().__init__()
#         self.body, self.head = ..., nn.Linear(64, 10)
#         self.collapse = NeuralCollapse(10, 64, lambda: (self.head.weight, self.head.bias))
#
#     def validation_step(self, batch, index):
#         self.collapse.update(self.body(batch[0]), batch[1])
#
#     def on_validation_epoch_end(self):
#         self.log_dict(self.collapse.compute())
#         self.collapse.reset()
# ```
#
# Its state is one tensor, which is merged across processes.
