"""Layers one after the other, whose gradients are finished from the last to the first."""

import torch
from torch import nn

import ebb


class Breaks(torch.autograd.Function):
    """Gives a gradient through, or fails."""

    @staticmethod
    def forward(context, x, job):
        context.job = job
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        if context.job.step == 3:
            raise ArithmeticError("in the midst of backward")
        return gradient, None


class Job(ebb.Job):
    def model(self):
        return nn.Sequential(*(nn.Linear(32, 32) for _ in range(8)))

    def dataset(self):
        return torch.utils.data.TensorDataset(torch.randn(64, 32, generator=torch.Generator().manual_seed(5)))

    def loss(self, model, batch):
        (x,) = batch
        for index, layer in enumerate(model):
            x = layer(x)
            if index == 3:
                x = Breaks.apply(x, self)
        return x.square().sum() * (float("nan") if self.step == 4 else 1), len(x)


class Wide(Job):
    """Each layer has more than 1 MiB of gradients."""

    def model(self):
        return nn.Sequential(*(nn.Linear(512, 512) for _ in range(3)))

    def dataset(self):
        return torch.utils.data.TensorDataset(torch.randn(64, 512, generator=torch.Generator().manual_seed(5)))
