"""Image models: BatchNorm, dropout, augmentation, EMA, schedules, autocast, and their parts one by one."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

import ebb


class Images(torch.utils.data.Dataset):
    """Made-up images, flipped and shifted by chance."""

    def __init__(self, rows=75, augment=True):
        generator = torch.Generator().manual_seed(1)
        self.images = torch.randn(rows, 3, 8, 8, generator=generator)
        self.labels = torch.randint(0, 5, (rows,), generator=generator)
        self.augment = augment

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, row):
        image = self.images[row]
        if self.augment:
            if torch.rand(()) < 0.5:
                image = image.flip(-1)
            image = image.roll(int(torch.randint(-2, 3, ())), dims=-1)
        return image, self.labels[row]


def small_cnn(dropout=0.2):
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(dropout), nn.Flatten(), nn.Linear(288, 16), nn.ReLU(), nn.Linear(16, 5)
    )


class Job(ebb.Job):
    """The built-in optimizer, and the job file's schedule and clipping."""

    def model(self):
        return small_cnn()

    def dataset(self):
        return Images()

    def loss(self, model, batch):
        images, labels = batch
        return F.cross_entropy(model(images), labels, reduction="sum"), len(labels)


class Native(Job):
    """On an Ebb dataset."""

    def dataset(self):
        return None

    def collate(self, rows):
        images, labels = rows
        return images * 2 + torch.randn_like(images) * 0.1, labels

    def evaluate(self, model, batch):
        images, labels = batch
        scores = model(images)
        loss = F.cross_entropy(scores, labels, reduction="sum")
        return {"loss": loss, "correct": (scores.argmax(1) == labels).sum(), "largest": scores.max()}, len(labels)


class Weightless(Job):
    """Rows that count nothing."""

    def loss(self, model, batch):
        return super().loss(model, batch)[0], 0.0


class Everything(Job):
    """OneCycle over two groups, EMA with its buffers, clipping by the spec."""

    def model(self):
        model = small_cnn()
        self.ema = copy.deepcopy(model)
        return model

    def state(self, model):
        return {"ema": self.ema}

    def optimizer(self, model):
        decayed = [p for p in model.parameters() if p.ndim > 1]
        plain = [p for p in model.parameters() if p.ndim <= 1]
        return torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0, "lr": 2e-3}], lr=1e-3)

    def scheduler(self, optimizer):
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=[1e-2, 2e-2], total_steps=40)

    def on_step(self, model, step):
        for mean, now in zip(self.ema.parameters(), model.parameters()):
            mean.lerp_(now, 0.1)
        for mean, now in zip(self.ema.buffers(), model.buffers()):
            mean.copy_(now)


class EvaluatesAverage(Everything):
    """What is evaluated is the average, a module that the model does not hold."""

    def dataset(self):
        return None

    def evaluate(self, model, batch):
        images, labels = batch
        scores = self.ema(images)
        return {"loss": F.cross_entropy(scores, labels, reduction="sum")}, len(labels)


class ReadAhead(Job):
    """Rows come from processes of a loader."""

    loader = {"num_workers": 2, "prefetch_factor": 2}


class Plainly(Images):
    """Rows that say how they were made: with one thread, and by deterministic algorithms."""

    def __getitem__(self, row):
        made = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
        if made != (1, True):
            raise RuntimeError(f"made with (threads, deterministic) = {made}")
        return super().__getitem__(row)


class Plain(Job):
    """Rows that are read where they are asked for."""

    def dataset(self):
        return Plainly()


class PlainAhead(Plain):
    """The same by a loader's process, forked."""

    loader = {"num_workers": 1}


class PlainSpawned(Plain):
    """The same by one that is not forked."""

    loader = {"num_workers": 1, "multiprocessing_context": "spawn"}


class Several(Job):
    """Matrices to Muon, the rest to AdamW, each with a schedule."""

    def optimizer(self, model):
        matrices = [p for p in model.parameters() if p.ndim == 2]
        return [torch.optim.Muon(matrices, lr=1e-2), torch.optim.AdamW([p for p in model.parameters() if p.ndim != 2], lr=1e-2)]

    def scheduler(self, optimizers):
        return [torch.optim.lr_scheduler.StepLR(optimizers[0], 2, 0.5), torch.optim.lr_scheduler.ExponentialLR(optimizers[1], 0.9)]


class Validated(Job):
    """Rows of its own also for the evaluation, which measures by names of its own."""

    loader = {"num_workers": 1}

    def held_out(self):
        return Images(rows=11)

    def evaluate(self, model, batch):
        images, labels = batch
        scores = model(images)
        return {"margin": scores.max(1).values.sum(), "worst": float("inf")}, len(labels)


class Autocast(Job):
    scaler = torch.amp.GradScaler("cpu", enabled=False)  # as scripts have it that choose a type by an option

    def loss(self, model, batch):
        images, labels = batch
        with torch.autocast("cpu", torch.bfloat16):
            scores = model(images)
        return self.scaler.scale(F.cross_entropy(scores.float(), labels, reduction="sum")), len(labels)


class HalfParameters(Job):
    def model(self):
        return small_cnn().to(torch.bfloat16)

    def loss(self, model, batch):
        images, labels = batch
        return F.cross_entropy(model(images.bfloat16()).float(), labels, reduction="sum"), len(labels)


class ChannelsLast(Job):
    def model(self):
        return small_cnn().to(memory_format=torch.channels_last)


class GradientPenalty(Job):
    """A gradient of a gradient: of the inputs, and of a parameter."""

    def loss(self, model, batch):
        images, labels = batch
        images = images.clone().requires_grad_()
        loss = F.cross_entropy(model(images), labels, reduction="sum")
        of_images, of_weight = torch.autograd.grad(loss, [images, model[0].weight], create_graph=True)
        return loss + of_images.square().sum() + 0.01 * of_weight.square().sum(), len(labels)


class WritesGradients(torch.optim.SGD):
    """As many optimizers of people's own do."""

    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.data.mul_(0.5)
        return super().step(closure)


OPTIMIZERS = {
    "several_one_writes": lambda m: [
        torch.optim.Muon([p for p in m.parameters() if p.ndim == 2], lr=1e-2),
        WritesGradients([p for p in m.parameters() if p.ndim != 2], lr=0.05),
    ],
    "writes_gradients": lambda m: WritesGradients(m.parameters(), lr=0.05),
    "sgd": lambda m: torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "dampened": lambda m: torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9, dampening=0.3),
    "adam": lambda m: torch.optim.Adam(m.parameters(), lr=1e-2),
    "amsgrad": lambda m: torch.optim.AdamW(m.parameters(), lr=1e-2, amsgrad=True),
    "fused": lambda m: torch.optim.AdamW(m.parameters(), lr=1e-2, fused=True),
    "foreach": lambda m: torch.optim.AdamW(m.parameters(), lr=1e-2, foreach=True),
    "tensor_rate": lambda m: torch.optim.AdamW(m.parameters(), lr=torch.tensor(1e-2), foreach=False),
    "adagrad": lambda m: torch.optim.Adagrad(m.parameters(), lr=1e-2, initial_accumulator_value=0.1),
    "rmsprop": lambda m: torch.optim.RMSprop(m.parameters(), lr=1e-3, momentum=0.9, centered=True),
    "adafactor": lambda m: torch.optim.Adafactor(m.parameters(), lr=1e-2),
    "nadam": lambda m: torch.optim.NAdam(m.parameters(), lr=1e-2),
    "radam": lambda m: torch.optim.RAdam(m.parameters(), lr=1e-2),
    "asgd": lambda m: torch.optim.ASGD(m.parameters(), lr=1e-2),
    "rprop": lambda m: torch.optim.Rprop(m.parameters(), lr=1e-2),
    "adadelta": lambda m: torch.optim.Adadelta(m.parameters()),
    "adamax": lambda m: torch.optim.Adamax(m.parameters(), lr=1e-2),
    "muon": lambda m: torch.optim.Muon([p for p in m.parameters() if p.ndim == 2], lr=1e-2),
}


class Optimizers(Job):
    """The optimizer that `parameters: {optimizer: …}` names."""

    def optimizer(self, model):
        return OPTIMIZERS[self.parameters["optimizer"]](model)


SCHEDULERS = {
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "multistep": lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [2, 5], 0.3),
    "lambda": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step)),
    "sequential": lambda o: torch.optim.lr_scheduler.SequentialLR(
        o, [torch.optim.lr_scheduler.LinearLR(o, 0.1, total_iters=3), torch.optim.lr_scheduler.ExponentialLR(o, 0.8)], [3]
    ),
    "cyclic": lambda o: torch.optim.lr_scheduler.CyclicLR(o, 1e-3, 1e-1, step_size_up=2),
    "averaged": lambda o: torch.optim.swa_utils.SWALR(o, 0.01, anneal_epochs=3),
}


class Schedulers(Optimizers):
    def scheduler(self, optimizer):
        return SCHEDULERS[self.parameters["scheduler"]](optimizer)
