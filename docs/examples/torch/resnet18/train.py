"""ResNet-18 as it is built for CIFAR: 3 × 32 × 32, BatchNorm, flips and crops. The digits are enlarged to that shape."""

import torch
from torch import nn
from torch.nn import functional as F

import ebb


class Block(nn.Module):
    def __init__(self, inward, outward, stride):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(inward, outward, 3, stride, 1, bias=False), nn.BatchNorm2d(outward))
        self.second = nn.Sequential(nn.Conv2d(outward, outward, 3, 1, 1, bias=False), nn.BatchNorm2d(outward))
        same = stride == 1 and inward == outward
        self.short = nn.Identity() if same else nn.Sequential(nn.Conv2d(inward, outward, 1, stride, bias=False), nn.BatchNorm2d(outward))

    def forward(self, x):
        return F.relu(self.second(F.relu(self.first(x))) + self.short(x))


def resnet18(width, classes):
    blocks, inward = [], width
    for stage in range(4):
        for number in range(2):
            outward = width << stage
            blocks.append(Block(inward, outward, 2 if stage and not number else 1))
            inward = outward
    stem = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inward, classes))


def enlarged(batch):
    images, labels = batch
    return F.interpolate(images, size=(32, 32), mode="nearest").repeat(1, 3, 1, 1), labels


class Job(ebb.Job):
    def model(self):
        return resnet18(self.parameters.get("width", 64), 10)

    def loss(self, model, batch):
        images, labels = enlarged(batch)
        y, x = torch.randint(0, 9, (2,)).tolist()  # a crop for the batch and a flip for each image, drawn from (seed, rank, step)
        images = F.pad(images, (4, 4, 4, 4))[:, :, y : y + 32, x : x + 32]
        images = torch.where(torch.rand(len(images), 1, 1, 1, device=images.device) < 0.5, images.flip(3), images)
        return F.cross_entropy(model(images), labels, reduction="sum"), len(labels)

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)

    def scheduler(self, optimizer):
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=self.steps)

    def evaluate(self, model, batch):
        images, labels = enlarged(batch)
        scores = model(images)
        loss = F.cross_entropy(scores, labels, reduction="sum")
        return {"loss": float(loss), "correct": int((scores.argmax(1) == labels).sum())}, len(labels)
