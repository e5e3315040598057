"""Jobs on an Ebb dataset with a collate() of their own: of the rows alone, and of more than that."""

import os

import torch
from torch import nn
from torch.nn import functional as F

import ebb


class Job(ebb.Job):
    """Changes its rows in place, draws, and returns tensors of several kinds, one of them twice."""

    loader = {"num_workers": 1}  # always ahead, however quick

    def model(self):
        self.kept = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 10))
        return self.kept

    def collate(self, rows):
        images, labels = rows
        images.mul_(torch.rand(len(labels), 1, 1, 1)).add_(torch.randn_like(images), alpha=0.1)
        turned = images.to(memory_format=torch.channels_last)
        return {"images": turned, "again": turned, "labels": labels, "none": None, "half": labels.to(torch.bfloat16), "empty": labels[:0]}

    def loss(self, model, batch):
        assert batch["again"] is batch["images"]
        batch["images"].add_(0.5)  # a batch is its step's own
        return F.cross_entropy(model(batch["images"]), batch["labels"], reduction="sum"), len(batch["labels"])


class InTheStep(Job):
    loader = {"num_workers": 0}


class Quick(Job):
    loader = {}


class Views(Job):
    """Returns what it was given."""

    def collate(self, rows):
        images, labels = rows
        return {"images": images, "again": images, "labels": labels}


class ReadsModel(Job):
    """Is a function of parameters too, which the step before has changed."""

    def collate(self, rows):
        batch = super().collate(rows)
        batch["images"].mul_(1 + self.kept[1].weight.detach().abs().mean())
        return batch


class ReadsStep(Job):
    def collate(self, rows):
        batch = super().collate(rows)
        batch["images"].mul_(1 + getattr(self, "step", 0) / 100)
        return batch


class NeedsStep(Job):
    def collate(self, rows):
        batch = super().collate(rows)
        batch["images"].mul_(1 + (self.step if "step" in self.__dict__ or os.getpid() != HERE else 0) / 100)
        return batch


class Returns(Job):
    """What cannot be pickled."""

    def collate(self, rows):
        return {**super().collate(rows), "none": lambda: None}


class Shares(Job):
    """Two tensors of one memory."""

    def collate(self, rows):
        batch = super().collate(rows)
        return {**batch, "none": batch["labels"][1:]}


class Grows(Job):
    """More than there was room for."""

    def collate(self, rows):
        batch = super().collate(rows)
        return {**batch, "none": torch.zeros(1 << 19) if batch["labels"].sum() % 2 else None}


class Ends(Job):
    """Only where it is called ahead."""

    def collate(self, rows):
        if os.getpid() != HERE:
            os._exit(7)
        return super().collate(rows)


class Raises(Job):
    def collate(self, rows):
        if os.getpid() != HERE:
            raise ValueError("not here")
        return super().collate(rows)


HERE = os.getpid()
