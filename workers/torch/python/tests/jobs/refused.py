"""Programs that Ebb cannot keep its promises for, one class each."""

import random

import torch
import torch.distributed.device_mesh
import torch.distributed.fsdp
import torch.distributed.pipelining
import torch.distributed.tensor.parallel
import torch.nn.functional as F
from torch import nn

from vision import Images, Job, small_cnn


class Fine(Job):
    pass


class PrivateGenerator(Job):
    def model(self):
        model = super().model()
        model.generator = torch.Generator().manual_seed(1)
        return model

    def loss(self, model, batch):
        images, labels = batch
        noise = torch.randn(images.shape, generator=model.generator)
        return super().loss(model, (images + noise, labels))


_hidden = random.Random(1)


class HiddenGenerator(Job):
    def loss(self, model, batch):
        loss, weight = super().loss(model, batch)
        return loss * _hidden.random(), weight


class Counter(Job):
    def model(self):
        model = super().model()
        model[3].calls = 0
        model[3].register_forward_hook(lambda module, _i, _o: setattr(module, "calls", module.calls + 1))
        return model


class CounterInJob(Job):
    def loss(self, model, batch):
        self.seen = getattr(self, "seen", 0) + 1
        return super().loss(model, batch)


class OwnLoop(Job):
    """A loop as people write it, put into loss()."""

    def optimizer(self, model):
        self.own = torch.optim.SGD(model.parameters(), lr=0.1)
        return self.own

    def loss(self, model, batch):
        loss, weight = super().loss(model, batch)
        self.own.zero_grad()
        loss.backward()
        self.own.step()
        return loss.detach(), weight


class Adversaries(Job):
    """Two networks and two optimizers, the first of which is stepped in the midst of loss()."""

    def model(self):
        return nn.ModuleDict({"made": nn.Linear(4, 192), "told": nn.Linear(192, 1)})

    def optimizer(self, model):
        self.first = torch.optim.Adam(model["told"].parameters())
        return [self.first, torch.optim.Adam(model["made"].parameters())]

    def loss(self, model, batch):
        images, _ = batch
        made = model["made"](torch.randn(len(images), 4))
        self.first.zero_grad()
        (F.softplus(-model["told"](images.flatten(1))) + F.softplus(model["told"](made.detach()))).sum().backward()
        self.first.step()
        return F.softplus(-model["told"](made)).sum(), len(images)


class ScalesLoss(Job):
    scaler = torch.amp.GradScaler("cpu")

    def loss(self, model, batch):
        loss, weight = super().loss(model, batch)
        return self.scaler.scale(loss), weight


class ReadsBesideItself(Job):
    def model(self):
        open("vision.py").close()
        return super().model()


class WritesParameters(Job):
    def loss(self, model, batch):
        with torch.no_grad():
            model[0].weight.clamp_(-0.05, 0.05)
            model[0].weight.mul_(0.99)
        return super().loss(model, batch)


class SyncBatchNorm(Job):
    def model(self):
        return nn.SyncBatchNorm.convert_sync_batchnorm(small_cnn())


class Parallel(Job):
    def model(self):
        return nn.DataParallel(small_cnn())


class ProcessGroup(Job):
    def model(self):
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        return small_cnn()


class Lazy(Job):
    def model(self):
        return nn.Sequential(nn.Flatten(), nn.LazyLinear(5))


class Double(Job):
    def model(self):
        return small_cnn().double()


class Complex(Job):
    def model(self):
        model = small_cnn()
        model.phase = nn.Parameter(torch.zeros(3, dtype=torch.complex64))
        return model


class Expanded(Job):
    def model(self):
        model = small_cnn()
        model.scale = nn.Parameter(torch.ones(1).expand(5))
        return model


class AllFrozen(Job):
    def model(self):
        return small_cnn().requires_grad_(False)


class NoModule(Job):
    def model(self):
        return small_cnn


class Lbfgs(Job):
    def optimizer(self, model):
        return torch.optim.LBFGS(model.parameters())


class SparseAdam(Job):
    def optimizer(self, model):
        return torch.optim.SparseAdam(model.parameters())


class Closure(Job):
    def optimizer(self, model):
        class Needs(torch.optim.SGD):
            def step(self, closure):
                return super().step(closure)

        return Needs(model.parameters(), lr=0.1)


class LateState(Job):
    def optimizer(self, model):
        class Late(torch.optim.SGD):
            def step(self, closure=None):
                for group in self.param_groups:
                    for p in group["params"]:
                        state = self.state[p]
                        if "first" in state:
                            state["second"] = torch.zeros_like(p)
                        state["first"] = torch.zeros_like(p)

        return Late(model.parameters(), lr=0.1)


class AttributeState(Job):
    def optimizer(self, model):
        class Counts(torch.optim.SGD):
            taken = 0

            def __init__(self, *args, **named):
                super().__init__(*args, **named)
                self.taken = 0

            def step(self, closure=None):
                self.taken += 1
                return super().step(closure)

        return Counts(model.parameters(), lr=0.1)


class ForeignParameters(Job):
    def optimizer(self, model):
        return torch.optim.SGD(small_cnn().parameters(), lr=0.1)


class Plateau(Job):
    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def scheduler(self, optimizer):
        return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)


class SchedulerOfBuiltIn(Job):
    def scheduler(self, optimizer):
        return torch.optim.lr_scheduler.StepLR(optimizer, 1)


class SchedulerState(Plateau):
    def scheduler(self, optimizer):
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        scheduler.remembers = object()
        return scheduler


class Moves(Job):
    def loss(self, model, batch):
        model.double().float()
        return super().loss(model, batch)


class Assigns(Job):
    def loss(self, model, batch):
        model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True)
        return super().loss(model, batch)


class BufferShape(Job):
    def loss(self, model, batch):
        model[1].running_mean = torch.zeros(9)
        loss, weight = super().loss(nn.Sequential(*(m for m in model if m is not model[1])), batch)
        return loss, weight


class Unpool(Job):
    def model(self):
        model = nn.Module()
        model.body = nn.Conv2d(3, 4, 3, padding=1)
        model.out = nn.Linear(256, 5)
        return model

    def loss(self, model, batch):
        x, at = F.max_pool2d(model.body(batch[0]), 2, return_indices=True)
        x = F.max_unpool2d(x, at, 2)
        return F.cross_entropy(model.out(x.flatten(1)), batch[1], reduction="sum"), len(batch[1])


class OneValue(Job):
    def loss(self, model, batch):
        return super().loss(model, batch)[0]


class Detached(Job):
    def loss(self, model, batch):
        loss, weight = super().loss(model, batch)
        return loss.detach(), weight


class Vector(Job):
    def loss(self, model, batch):
        images, labels = batch
        return F.cross_entropy(model(images), labels, reduction="none"), len(labels)


class NegativeWeight(Job):
    def loss(self, model, batch):
        return super().loss(model, batch)[0], -1


class Stream(Job):
    def dataset(self):
        class Endless(torch.utils.data.IterableDataset):
            def __iter__(self):
                return iter(Images())

        return Endless()


class NoRows(Job):
    def dataset(self):
        return Images(0)


class NoData(Job):
    def dataset(self):
        return None


class StateOfText(Job):
    def state(self, model):
        return {"ema": "text"}


class ReplacesState(Job):
    def state(self, model):
        self.mean = torch.zeros(3)
        return {"mean": self.mean}

    def on_step(self, model, step):
        self.mean.data = torch.ones(3)


class RemembersInOnStep(Job):
    def on_step(self, model, step):
        self.best = step


class Unfreezes(Job):
    def on_step(self, model, step):
        model[0].weight.requires_grad_(False)


class NotFinite(Job):
    def loss(self, model, batch):
        loss, weight = super().loss(model, batch)
        return loss * float("nan"), weight


class OtherRows(Job):
    """A dataset of its own beside an Ebb dataset of another length."""


class WritesInEvaluate(Job):
    """A best result that each executor would know for its own rows only."""

    def state(self, model):
        self.largest = torch.zeros(())
        return {"largest": self.largest}

    def evaluate(self, model, batch):
        images, labels = batch
        loss = F.cross_entropy(model(images), labels, reduction="sum")
        self.largest.copy_(torch.maximum(self.largest, loss))
        return {"loss": loss}, len(labels)


class OptimizersOfOneParameter(Job):
    def optimizer(self, model):
        return [torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.AdamW(model[0].parameters())]


class OptimizersOfText(Job):
    def optimizer(self, model):
        return [torch.optim.SGD(model.parameters(), lr=0.1), "adamw"]


class LoaderOfBatches(Job):
    loader = {"batch_size": 7}


class LoaderOfWords(Job):
    loader = {"num_workers": "two"}


class FailsInLoader(Job):
    """Its rows come from another process, and one of them is no row."""

    loader = {"num_workers": 1}

    def dataset(self):
        class Rows(Images):
            def __getitem__(self, row):
                return {}["no such key"]

        return Rows()


class EvaluatesText(Job):
    def held_out(self):
        return Images(rows=4)

    def evaluate(self, model, batch):
        return {"loss": "low"}, 4


class EvaluatesMuch(EvaluatesText):
    def evaluate(self, model, batch):
        return {f"measure {number}": 0.0 for number in range(17)}, 4


class CountsInEvaluate(Job):
    evaluations = 0

    def evaluate(self, model, batch):
        self.evaluations += 1
        return {"loss": 1.0}, 1


class Raises(Job):
    def loss(self, model, batch):
        return undefined_name  # noqa: F821


class Exits(Job):
    def model(self):
        raise SystemExit("enough")


class Autotuned(Job):
    def model(self):
        return torch.compile(super().model(), mode="max-autotune")


class AutotunedInPlace(Job):
    def model(self):
        model = super().model()
        model[0].compile(mode="max-autotune-no-cudagraphs")
        return model


class AutotunedFunction(Job):
    def __init__(self):
        self.scaled = torch.compile(lambda loss: loss * 2, options={"coordinate_descent_tuning": True})


class Sharded(Job):
    """FSDP of PyTorch 1, over a group of one."""

    def model(self):
        _group()
        return torch.distributed.fsdp.FullyShardedDataParallel(small_cnn(), device_id=torch.device("cpu"))


class ShardedInPlace(Job):
    """FSDP of PyTorch 2."""

    def model(self):
        _group()
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
        return torch.distributed.fsdp.fully_shard(small_cnn(), mesh=mesh)


class TensorParallel(Job):
    def model(self):
        _group()
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
        plan = {"5": torch.distributed.tensor.parallel.ColwiseParallel()}
        return torch.distributed.tensor.parallel.parallelize_module(small_cnn(), mesh, plan)


class ReplicatedByDdp(Job):
    def model(self):
        _group()
        return nn.parallel.DistributedDataParallel(small_cnn())


class Pipeline(Job):
    def model(self):
        _group()
        return torch.distributed.pipelining.PipelineStage(small_cnn(), 0, 1, torch.device("cpu"), input_args=(torch.zeros(4, 3, 8, 8),))


class Collective(Job):
    """Of a group that there is not."""

    def loss(self, model, batch):
        loss, weight = super().loss(model, batch)
        torch.distributed.all_reduce(loss.detach())
        return loss, weight


class CollectiveOfOwnGroup(Job):
    def loss(self, model, batch):
        _group()
        loss, weight = super().loss(model, batch)
        torch.distributed.all_reduce(loss.detach())
        return loss, weight


class CollectiveInEvaluate(Job):
    def held_out(self):
        return Images(rows=4)

    def evaluate(self, model, batch):
        torch.distributed.barrier()
        return {"loss": 1.0}, 1


def _group():
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)


class MemoryOfDevice(Job):
    """What a GPU says that has too little memory."""

    def loss(self, model, batch):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 1.00 GiB")


NotAJob = 7
