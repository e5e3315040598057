"""Jobs whose executors compute one gradient of all the logical workers that they host: of weights that are not alike, with buffers and chance, in
batches of few rows."""

import torch
from torch import nn
from torch.nn import functional as F
from vision import Images

import ebb


class Weighted(ebb.Job):
    """Nothing by chance and nothing of a batch as a whole; rows of one label weigh more."""

    def model(self):
        return nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.Tanh(), nn.Linear(16, 5))

    def dataset(self):
        return Images(augment=False)

    def loss(self, model, batch):
        images, labels = batch
        weights = torch.where(labels == 2, 3.0, 1.0)
        return (F.cross_entropy(model(images), labels, reduction="none") * weights).sum(), weights.sum()

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


class Few(Weighted):
    """Never more than five rows at once."""

    micro_batch_rows = 5

    def loss(self, model, batch):
        assert len(batch[1]) <= 5, len(batch[1])
        return super().loss(model, batch)


class Shared(Few):
    """On an Ebb dataset, with a collate() that draws."""

    loader = {"num_workers": 1}  # always ahead, however quick

    def dataset(self):
        return None

    def collate(self, rows):
        images, labels = rows
        return images.add_(torch.randn_like(images), alpha=0.1), labels


class InTheStep(Shared):
    loader = {"num_workers": 0}


class Tensors(Few):
    """On an Ebb dataset, whose tensors are a batch as they are."""

    def dataset(self):
        return None


class Chance(ebb.Job):
    """Running statistics, dropout and rows that are changed by chance."""

    def model(self):
        return nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 5))

    def dataset(self):
        return Images()

    def loss(self, model, batch):
        images, labels = batch
        return F.cross_entropy(model(images), labels, reduction="sum"), len(labels)


class ChanceOfFew(Chance):
    micro_batch_rows = 3


class ReadAhead(ChanceOfFew):
    loader = {"num_workers": 2}


class Parted(Few):
    """A part of the model is reached by some rows only."""

    def model(self):
        model = super().model()
        model.further = nn.ModuleList(nn.Linear(5, 5) for _ in range(5))
        return model

    def loss(self, model, batch):
        images, labels = batch
        scores = model[:4](images)
        for label in labels.unique().tolist():
            scores = torch.where((labels == label)[:, None], scores + model.further[label](scores), scores)
        return F.cross_entropy(scores, labels, reduction="sum"), len(labels)


class NoNumber(Weighted):
    micro_batch_rows = 2.5


class OneSize(Weighted):
    """Can only compute with the rows of one logical worker."""

    def loss(self, model, batch):
        images, labels = batch
        return super().loss(model, (images.reshape(self.batch_size, 192), labels))
