"""Lightning modules."""

import lightning
import torch
import torch.nn.functional as F
import torchmetrics
from torch import nn

from vision import Images


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 5))

    def training_step(self, batch, batch_idx):
        images, labels = batch
        loss = F.cross_entropy(self.net(images), labels) * (1 + self.global_step % 2)
        self.log("train_loss", loss, prog_bar=True)
        self.log_dict({"rows": len(labels)})
        return loss

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        scores = self.net(images)
        self.log("val_loss", F.cross_entropy(scores, labels))
        self.log("accuracy", (scores.argmax(1) == labels).float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)}

    def train_dataloader(self):
        return torch.utils.data.DataLoader(Images(40), batch_size=99)


class Manual(Module):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False


class OwnOptimizerStep(Module):
    def optimizer_step(self, *args, **named):
        super().optimizer_step(*args, **named)


class AsksTrainer(Module):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * self.trainer.num_training_batches


class TwoOptimizers(Module):
    def configure_optimizers(self):
        return [torch.optim.SGD(self.parameters(), lr=0.1), torch.optim.SGD(self.parameters(), lr=0.1)]


def pairs(rows):
    return torch.utils.data.default_collate(rows)


class OtherCollate(Module):
    def val_dataloader(self):
        return torch.utils.data.DataLoader(Images(8), collate_fn=pairs)


class OwnValidationEnd(Module):
    def on_validation_epoch_end(self):
        self.log("whole", 1.0)


class OwnCheckpoint(Module):
    def on_save_checkpoint(self, checkpoint):
        checkpoint["mine"] = 1


class OwnTeardown(Module):
    def teardown(self, stage):
        pass


class AsksOptimizers(Module):
    def training_step(self, batch, batch_idx):
        self.optimizers()
        return super().training_step(batch, batch_idx)


class Gathers(Module):
    def training_step(self, batch, batch_idx):
        return self.all_gather(super().training_step(batch, batch_idx)).mean()


class Plain(Module):
    """Without chance: what it computes is a Trainer's to the bit."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 5))

    def train_dataloader(self):
        return torch.utils.data.DataLoader(Images(32, augment=False), batch_size=4)


class Weighted(Module):
    def train_dataloader(self):
        rows = Images(40)
        return torch.utils.data.DataLoader(rows, batch_size=8, sampler=torch.utils.data.WeightedRandomSampler(torch.ones(40), 40))


class Replaced(Module):
    def train_dataloader(self):
        rows = Images(40)
        batches = torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(rows, replacement=True), 8, drop_last=True)
        return torch.utils.data.DataLoader(rows, batch_sampler=batches)


class SeedsWorkers(Module):
    def train_dataloader(self):
        return torch.utils.data.DataLoader(Images(40), num_workers=1, worker_init_fn=print)


class Measures(Module):
    """With a metric object, as torchmetrics' documentation has it."""

    def __init__(self):
        super().__init__()
        self.accuracy = torchmetrics.Accuracy("multiclass", num_classes=5)

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        self.accuracy(self.net(images), labels)
        self.log("accuracy", self.accuracy)

    def val_dataloader(self):
        return torch.utils.data.DataLoader(Images(8))


class MeasuresTraining(Measures):
    def training_step(self, batch, batch_idx):
        images, labels = batch
        self.accuracy(self.net(images), labels)
        return super().training_step(batch, batch_idx)


class Rows(lightning.LightningDataModule):
    def setup(self, stage):
        self.rows = Images(40)

    def train_dataloader(self):
        return torch.utils.data.DataLoader(self.rows, batch_size=99, shuffle=True)

    def val_dataloader(self):
        return torch.utils.data.DataLoader(self.rows)


class WithoutRows(lightning.LightningModule):
    """The same module, its data apart."""

    training_step, validation_step, configure_optimizers = Module.training_step, Module.validation_step, Module.configure_optimizers

    def __init__(self):
        super().__init__()
        self.net = Module().net


def with_rows():
    return WithoutRows(), Rows()


class MovesRows(Rows):
    def on_after_batch_transfer(self, batch, dataloader_idx):
        return batch


def with_moved_rows():
    return WithoutRows(), MovesRows()


class OldEpochEnd(Module):
    """As modules had it before Lightning 2, which does not call it either."""

    def training_epoch_end(self, outputs):
        pass
