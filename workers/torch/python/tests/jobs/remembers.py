"""Programs that remember, where Ebb has to look for it: in rows, in collators, in objects, in modules of the code, in another process."""

import collections
import functools
import itertools
import os
import random

import numpy
import torch

from vision import Images, Job

CALLS = 0
_seen = []


class Rows(Images):
    """Rows with noise of a generator of their own; as numbers, so that a collator may do anything."""

    def __getitem__(self, row):
        return self.images[row] + float(self.noise()), self.labels[row]


class NumpyRows(Rows):
    def __init__(self):
        super().__init__()
        self.rng = numpy.random.default_rng(0)

    def noise(self):
        return self.rng.normal()


class RandomRows(Rows):
    def __init__(self):
        super().__init__()
        self.random = random.Random(0)

    def noise(self):
        return self.random.random()


class TorchRows(Rows):
    def __init__(self):
        super().__init__()
        self.generator = torch.Generator().manual_seed(0)

    def noise(self):
        return torch.rand((), generator=self.generator)


class CountingRows(Rows):
    """The value does not depend on it, for eight rows; but who knows when it would."""

    calls = 0

    def noise(self):
        self.calls += 1
        return 0.0


class HiddenRows(Rows):
    """Where nobody can look: an iterator that is no generator of chance."""

    def __init__(self):
        super().__init__()
        self.steps = itertools.cycle([0.0, 1.0, 2.0, 3.0, 4.0])

    def noise(self):
        return next(self.steps)


class CachedAugmentation(Images):
    """Augments a row once: which epoch that was depends on when an executor came."""

    @functools.cache
    def __getitem__(self, row):
        return super().__getitem__(row)


class Plain(Images):
    """What may be remembered: rows as they were read, the file that is open, and where a reader stands."""

    def __init__(self):
        super().__init__(augment=False)
        self.file, self.cache, self.last, self.recent = None, {}, None, collections.OrderedDict()

    def __getitem__(self, row):
        if self.file is None:
            self.file = open(os.devnull, "rb")
        if row not in self.cache:
            self.cache[row] = self.images[row] * 2
        self.last = row // 10
        return self.cache[row] + torch.rand(()), self.labels[row]


def of(rows):
    """A job with these rows."""

    class OfRows(Job):
        def dataset(self):
            return rows()

    return OfRows


Numpy, Random, Torch, Counting, Hidden, Augmented, Fine = map(
    of, (NumpyRows, RandomRows, TorchRows, CountingRows, HiddenRows, CachedAugmentation, Plain)
)


class InSubset(Job):
    def dataset(self):
        return torch.utils.data.Subset(NumpyRows(), range(40))


class ReadAhead(Job):
    """In a process of the loader."""

    loader = {"num_workers": 1}

    def dataset(self):
        return NumpyRows()


class HeldOut(Job):
    def held_out(self):
        return RandomRows()


class Collates(Job):
    def __init__(self):
        self.mix = random.Random(3)

    def collate(self, rows):
        images, labels = super().collate(rows)
        return images * self.mix.random(), labels


class CollatesNative(Collates):
    """Of an Ebb dataset."""

    def dataset(self):
        return None

    def collate(self, rows):
        images, labels = rows
        return images.mul_(self.mix.random()), labels


class Meter:
    def __init__(self):
        self.n = 0
        self.inner = {"rng": numpy.random.default_rng(1)}


class Metered(Job):
    def __init__(self):
        self.meter = Meter()

    def loss(self, model, batch):
        self.meter.n += 1
        return super().loss(model, batch)


class Sampled(Metered):
    def loss(self, model, batch):
        self.meter.inner["rng"].normal()
        return Job.loss(self, model, batch)


class GlobalCounter(Job):
    def loss(self, model, batch):
        global CALLS
        CALLS += 1
        return super().loss(model, batch)


class GlobalList(Job):
    def loss(self, model, batch):
        _seen.append(len(batch[1]))
        return super().loss(model, batch)


class OfClass(Job):
    losses = 0

    def loss(self, model, batch):
        OfClass.losses += 1
        return super().loss(model, batch)


def _closure():
    generator = random.Random(5)

    def scaled(loss):
        generator.random()
        return loss

    return scaled


_scaled = _closure()


class InClosure(Job):
    def loss(self, model, batch):
        loss, weight = super().loss(model, batch)
        return _scaled(loss), weight


class Teacher(Job):
    """A second model whose statistics move, and that no state() names."""

    def model(self):
        self.teacher = torch.nn.BatchNorm2d(3)
        return super().model()

    def loss(self, model, batch):
        self.teacher(batch[0])
        return super().loss(model, batch)


class Entropy(Job):
    def loss(self, model, batch):
        loss, weight = super().loss(model, batch)
        return loss * random.SystemRandom().random(), weight


class FirstCounts(Job):
    """Whichever logical worker is computed first decides."""

    @functools.cache
    def noise(self):
        return float(torch.rand(()))

    def loss(self, model, batch):
        loss, weight = super().loss(model, batch)
        return loss * self.noise(), weight


class OfProcess(Job):
    def model(self):
        torch.manual_seed(os.getpid())
        return super().model()


class OnceOnly(Job):
    """Can be trained in one of two processes."""

    def model(self):
        if not os.path.exists(self.parameters["mark"]):
            open(self.parameters["mark"], "w").close()
            raise OSError("no other process was here")
        return super().model()


class EndsProcess(Job):
    def model(self):
        os._exit(9)


class Tracked(torch.optim.SGD):
    """Keeps what it counts in an object."""

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.meter = Meter()

    def step(self, closure=None):
        self.meter.n += 1
        return super().step(closure)


class OptimizerMeter(Job):
    def optimizer(self, model):
        return Tracked(model.parameters(), lr=0.1)


class Around(torch.optim.Optimizer):
    """An optimizer around another one, whose state would stay behind."""

    def __init__(self, inner):
        super().__init__(inner.param_groups, {})
        self.inner = inner

    def step(self, closure=None):
        return self.inner.step()


class OptimizerAround(Job):
    def optimizer(self, model):
        return Around(torch.optim.Adam(model.parameters()))


class Forgets(torch.optim.lr_scheduler.LRScheduler):
    def __init__(self, optimizer):
        self.meter = Meter()
        super().__init__(optimizer)

    def get_lr(self):
        self.meter.n += 1
        return [0.1 / self.meter.n for _ in self.optimizer.param_groups]

    def state_dict(self):
        return {"last_epoch": self.last_epoch}

    def load_state_dict(self, state):
        self.last_epoch = state["last_epoch"]


class SchedulerForgets(Job):
    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def scheduler(self, optimizer):
        return Forgets(optimizer)


class GlobalNorm(torch.optim.SGD):
    """Scales by the norm of all gradients."""

    def step(self, closure=None):
        parameters = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.stack([p.grad.norm() for p in parameters]).norm()
        for parameter in parameters:
            parameter.grad.div_(norm + 1)
        return super().step(closure)


class Across(Job):
    def optimizer(self, model):
        return GlobalNorm(model.parameters(), lr=0.1)


class Langevin(torch.optim.SGD):
    """Noise is welcome: it is seeded."""

    def step(self, closure=None):
        super().step(closure)
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.add_(torch.randn_like(parameter), alpha=1e-3)


class Noisy(Job):
    def optimizer(self, model):
        return Langevin(model.parameters(), lr=0.1, momentum=0.9)
