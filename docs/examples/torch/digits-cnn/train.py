"""Convolutions with BatchNorm on 8 × 8 digits that are shifted a little at random."""

import torch
from torch import nn
from torch.nn import functional as F

import ebb


def shifted(images):
    """Each image moved by up to one pixel. Called from loss(), where chance is seeded by (seed, rank, step)."""
    padded = F.pad(images, (1, 1, 1, 1))
    down, right = torch.randint(0, 3, (2, len(images))).tolist()
    return torch.stack([image[:, y : y + 8, x : x + 8] for image, y, x in zip(padded, down, right)])


class Job(ebb.Job):
    def model(self):
        return nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1, stride=2), nn.BatchNorm2d(32), nn.ReLU(),
            nn.Flatten(), nn.Dropout(0.2), nn.Linear(32 * 4 * 4, 10),
        )  # fmt: skip

    def loss(self, model, batch):
        images, labels = batch
        return F.cross_entropy(model(shifted(images)), labels, reduction="sum"), len(labels)

    def optimizer(self, model):
        return torch.optim.AdamW(model.parameters(), lr=3e-3)

    def scheduler(self, optimizer):
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=6e-3, total_steps=self.steps)

    def evaluate(self, model, batch):
        images, labels = batch
        scores = model(images)
        loss = F.cross_entropy(scores, labels, reduction="sum")
        return {"loss": float(loss), "correct": int((scores.argmax(1) == labels).sum())}, len(labels)
