"""A short script: `entry: script`, or `python script.py`."""

import torch
import torch.nn.functional as F

import ebb
from vision import Images, small_cnn


def loss(model, batch):
    images, labels = batch
    return F.cross_entropy(model(images), labels, reduction="sum"), len(labels)


model = small_cnn()
ebb.fit(model, loss, torch.optim.AdamW(model.parameters(), lr=1e-3), Images(), steps=3, batch_size=8)
