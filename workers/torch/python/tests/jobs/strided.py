"""Jobs whose updates take several steps at once: what counts steps, and what remembers the last update."""

import torch
from together import Weighted
from torch import nn

import ebb


class Counted(Weighted):
    """AdamW of two groups under a schedule that moves its βs too, beside a sum of what on_step() is told."""

    def optimizer(self, model):
        first, second = model[1].parameters(), model[3].parameters()
        return torch.optim.AdamW([{"params": first, "weight_decay": 0.1}, {"params": second, "lr": 1e-3}], lr=3e-3)

    def scheduler(self, optimizer):
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=[6e-3, 2e-3], total_steps=40)

    def state(self, model):
        self.told = torch.zeros(2)
        return {"told": self.told}

    def on_step(self, model, step):
        self.told.add_(torch.tensor([float(step), float(self.update_steps)]))


class BuiltIn(Weighted):
    """The job file's optimizer."""

    def optimizer(self, model):
        return None


class Parted(ebb.Job):
    """A parameter that a step reaches only when its number is even."""

    def model(self):
        return nn.ModuleList([nn.Linear(4, 1, bias=False), nn.Linear(4, 1, bias=False)])

    def dataset(self):
        return torch.utils.data.TensorDataset(torch.ones(64, 4))

    def loss(self, model, batch):
        scores = model[0](batch[0])
        if self.step % 2 == 0:
            scores = scores + model[1](batch[0])
        return scores.sum(), len(batch[0])

    def optimizer(self, model):
        return torch.optim.Adam(model.parameters(), lr=0.01)


class NoRate(Weighted):
    """Of an optimizer that makes its rates itself."""

    def optimizer(self, model):
        class Own(torch.optim.SGD):
            def step(self, closure=None):
                for group in self.param_groups:
                    for p in group["params"]:
                        if p.grad is not None:
                            p.data.sub_(p.grad, alpha=0.01)

        optimizer = Own(model.parameters(), lr=0.1)
        optimizer.param_groups[0]["lr"] = None
        return optimizer
