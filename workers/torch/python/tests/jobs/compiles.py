"""Programs that are compiled."""

import torch
import torch.nn.functional as F

from vision import Job, small_cnn


class Compiled(Job):
    """By a compiler that needs no other program."""

    def model(self):
        return torch.compile(small_cnn(), backend="aot_eager")


class CompiledInPlace(Job):
    def model(self):
        model = small_cnn()
        model.compile(backend="aot_eager")
        return model


class CompiledFunction(Job):
    """Not the model, but what its loss calls."""

    def loss(self, model, batch):
        images, labels = batch
        return _cross_entropy(model(images), labels), len(labels)


@torch.compile(backend="aot_eager")
def _cross_entropy(scores, labels):
    return F.cross_entropy(scores, labels, reduction="sum")
