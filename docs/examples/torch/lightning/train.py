"""A LightningModule as people write it. Its Trainer is left out: Ebb runs the steps."""

import lightning
import torch
from torch import nn
from torch.nn import functional as F


class Digits(lightning.LightningModule):
    def __init__(self, width=128):
        super().__init__()
        body = [nn.Flatten(), nn.Linear(64, width), nn.BatchNorm1d(width), nn.ReLU()]
        self.net = nn.Sequential(*body, nn.Dropout(0.2), nn.Linear(width, 10))

    def training_step(self, batch, batch_idx):
        images, labels = batch
        loss = F.cross_entropy(self.net(images), labels)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        scores = self.net(images)
        self.log("val_loss", F.cross_entropy(scores, labels))
        self.log("correct", (scores.argmax(1) == labels).float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=6e-3, total_steps=self.trainer.estimated_stepping_batches)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
