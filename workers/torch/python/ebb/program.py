"""The numerics: gradient of a (rank, step), update, evaluation, over a replica in shared memory. No protocol, no network, no sums.

Between calls the replica alone says what the training is: a gradient never changes it, an update is a function of it and the
gradient. On a CPU the model's parameters are views of the segment; on a device they are views of one flat tensor there, which
`snapshot` copies into the segment and `hold` takes from it.
"""

from __future__ import annotations

import math
import struct
from typing import Any, Callable

import torch

from ebb import attributes, compiled, numerics, python_state, returned, schedulers, seeds, strides
from ebb.build import Parts, Settings, build
from ebb.collator import Rows
from ebb.data import Batches, OwnBatches, SharedBatches, Stopwatch, moved
from ebb.gradients import Gradients
from ebb.job import Job
from ebb.layout import Layout, Slot, gradient_slots
from ebb.optimizer_state import OptimizerState
from ebb.refuse import NonFinite, Refused, user_code
from ebb.segment import WORD_BYTES, Segment, apart
from ebb.several import Several, each, name_of


class Program:
    """A built job and its memory."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.seed = settings, settings.seed
        self.cuda = settings.device == "cuda"
        # Whether the replica lives apart from the segment; on a CPU only so that tests can try it.
        self.apart = self.cuda or settings.apart
        self.device = torch.device("cuda", torch.cuda.current_device()) if self.cuda else torch.device("cpu")
        self.batch_segment = Segment("batch", settings.batch_bytes * settings.batch_places)
        self.parts: Parts = build(settings, self.batch_segment)
        self.job, self.model, self.data = self.parts.job, self.parts.model, self.parts.data
        compiled.execution(self.job, self.model, settings.code)  # refuses, before anything is compiled
        self.optimizer = self.parts.optimizer
        strides.check(self.optimizer, settings.spec)
        named = list(self.model.named_parameters())
        self.trainable = [(n, p) for n, p in named if p.requires_grad]
        self.frozen = [(n, p) for n, p in named if not p.requires_grad]
        self.optimizer_state = OptimizerState(self.optimizer, self.trainable, thorough=settings.check)
        self.gradients_kept = _keeps_gradients(self.optimizer)
        self.scheduler = schedulers.make(self.job, self.optimizer, self.parts.built_in_rates)
        # Otherwise an update runs PyTorch's own code alone, which draws nothing by chance and changes nothing but parameters and its state.
        self.own_update = not self.gradients_kept or self.scheduler is not None or type(self.job).on_step is not Job.on_step
        self._place()
        self._bind()
        self._watch()
        if isinstance(self.data, SharedBatches):
            own = [] if self.apart else [self.replica_segment.bytes, self.working_buffers]
            self.data.call_ahead(settings.threads, own)
        self.whole = True
        self.on_step_tried = type(self.job).on_step is Job.on_step
        self.scheduler_tried = False
        #: Whose gradient the next one is added to, of which step it is then, and where they lie.
        self.added_next: tuple[tuple[int, ...], int, int] | None = None
        self.gradient_digest: str | None = None
        #: What the check found here, to be held beside what another process found.
        self.observed: dict[str, Any] = {}

    # ------------------------------------------------------------------------------------------------ building

    def _place(self) -> None:
        layout = Layout()
        self.trainable_slots = [layout.place(name, p) for name, p in self.trainable]
        self.frozen_slots = [layout.place(name, p) for name, p in self.frozen]
        self.buffers_word = layout.words
        # (module, key) is where a buffer lives: user code may replace the tensor there.
        self.buffers: list[tuple[torch.nn.Module, str, Slot]] = []
        owners = {
            id(b): (module, key) for module in reversed(list(self.model.modules())) for key, b in module._buffers.items() if b is not None
        }
        for name, buffer in self.model.named_buffers():
            module, key = owners[id(buffer)]
            self.buffers.append((module, key, layout.place(name, buffer, dense_copy=True)))
        self.buffers_end = layout.words
        self.state_slots = [layout.place(f"state {name}", tensor) for name, tensor in self.parts.state]
        self.compute_words = layout.words
        self.optimizer_state.place(layout, self.apart)
        self.python_word = layout.words
        first = python_state.to_bytes(self._plain())
        self.python_bytes = python_state.capacity(first)
        self.replica_words = self.python_word + self.python_bytes // WORD_BYTES
        self.gradient_slots, self.gradient_elements = gradient_slots(self.trainable_slots)
        self.touched_elements = -(-len(self.trainable) // 16) * 16
        self.extra_elements = self.touched_elements + (self.buffers_end - self.buffers_word) * 2

    def _bind(self) -> None:
        self.replica_segment = Segment("replica", self.replica_words * WORD_BYTES)
        host = self.replica_segment.bytes[: self.replica_words * WORD_BYTES]
        if self.cuda:
            for segment in (self.replica_segment, self.batch_segment):
                segment.pin()
        self.replica = torch.zeros_like(host, device=self.device) if self.apart else host
        self.host_replica = host
        self.views: list[torch.Tensor] = []
        with torch.no_grad():
            for (_, p), slot in zip(self.trainable + self.frozen, self.trainable_slots + self.frozen_slots):
                view = slot.view(self.replica)
                view.copy_(p)
                p.data = view
                self.views.append(view)
            self._bind_buffers()
            self.state_views = []
            for (_, tensor), slot in zip(self.parts.state, self.state_slots):
                view = slot.view(self.replica)
                view.copy_(tensor)
                tensor.data = view
                self.state_views.append(view)
            self.optimizer_state.bind(self.replica, host)
        self.python_written: bytes | None = None
        self._write_python()
        self.gradient_flat = torch.zeros(self.gradient_elements, device=self.device) if self.apart else None
        self.gradients = Gradients(self.trainable, self.gradient_slots, self.gradient_elements)
        self.places: dict[int, Place] = {}
        self.add_place(0, None)
        self.snapshot()

    def add_place(self, number: int, descriptor: int | None) -> None:
        """Maps memory for gradients: of the executor's, by its number, or this process's own, which is given up once there is one of theirs."""
        size = (self.gradient_elements + self.extra_elements) * WORD_BYTES
        place = Place(self, Segment("gradient", size, descriptor))
        place.segment.close_descriptor()
        if self.cuda:
            place.segment.pin()
        own = self.places.pop(0, None)
        self.places[number] = place
        self._use(number)
        if own is not None and self.cuda:
            own.segment.unpin()

    def _use(self, number: int) -> None:
        """From now on gradients are there."""
        self.place = place = self.places[number]
        self.gradient_segment, self.host_gradient = place.segment, place.host
        self.gradients.views = place.views
        if not self.apart:
            self.gradient_flat = place.host

    def _bind_buffers(self) -> None:
        """Buffers are views of a working copy: a forward changes them, and a gradient must not change the replica."""
        start, end = self.buffers_word * WORD_BYTES, self.buffers_end * WORD_BYTES
        self.replica_buffers = self.replica[start:end]
        self.working_buffers, storage_at = apart(self.replica_buffers)
        self.buffer_views = []
        for module, key, slot in self.buffers:
            # Of a storage of its own, as a compiler demands of what a forward changes. `.data`: each has a count of changes of its own, or
            # one BatchNorm's change would look like one of another's to autograd.
            raw = storage_at(slot.word * WORD_BYTES - start, slot.words * WORD_BYTES)
            view = Slot(slot.name, slot.shape, slot.stride, slot.dtype, 0).view(raw).data
            old = module._buffers[key]
            view.copy_(old)
            self.buffer_views.append(view)
            for other in self.model.modules():  # a buffer that several modules share stays shared
                for other_key, buffer in other._buffers.items():
                    if buffer is old:
                        other._buffers[other_key] = view
        self.replica_buffers.copy_(self.working_buffers)

    def _watch(self) -> None:
        """What to compare after each gradient."""
        self.modes = [(module, module.training) for module in self.model.modules()]
        names = {id(p): name for name, p in self.trainable + self.frozen}
        self.homes = [
            (module._parameters, key, p, names[id(p)])
            for module in self.model.modules()
            for key, p in module._parameters.items()
            if p is not None
        ]
        self.trains = {name: p.requires_grad for name, p in self.trainable + self.frozen}
        self.addresses = [(p, view.data_ptr(), name) for (name, p), view in zip(self.trainable + self.frozen, self.views)]

    # ------------------------------------------------------------------------------------------------ gradient

    def expect(self, ranks: list[int], step: int) -> None:
        """The gradients of these ranks are asked for next, from this step on."""
        if isinstance(self.data, OwnBatches):
            self.data.expect(ranks, step)

    def gradient(
        self,
        rank: int,
        step: int,
        rows: int = 0,
        place: int = 0,
        say: Callable[[bytes], None] | None = None,
        start: int = 0,
        number: int = 0,
        following: Rows | None = None,
        mean: bool = False,
        others: tuple[int, ...] = (),
        first: bool = True,
        last: bool = True,
    ) -> tuple[float, float, int]:
        """The gradient of this rank's rows of this step, from this byte of the batch segment on, into the memory of this number: (weight, loss,
        microseconds waited for data). Who is to `say` which stretches are final is given them as backward finishes them, unless that happens on a device first.
        The rows have a number where they stay until the gradient is there; those that are asked for next may lie there too. Of a job's only logical
        worker the gradient may be asked for as the `mean`, divided by its weight. Without determinism it is of the rows of `others` as well, and of an update
        that takes several steps it is asked for one after the other: each is added to those since the `first`, and whole with the `last`."""
        self._use(place)
        ranks = (rank, *others)
        if not first and self.added_next != (ranks, step, place):
            raise RuntimeError(f"a gradient of {ranks}, step {step}, was to be added to one of {self.added_next}")
        self.added_next = None if last else (ranks, step + 1, place)
        if isinstance(self.data, SharedBatches):
            batches = self.data.batches(ranks, step, rows, start, number)
            waited_us = self.data.waited_us()
            self.data.begin(following)
        else:
            watch = Stopwatch()
            batches = self.data.batches(ranks, step)
            waited_us = watch.elapsed_us()
        try:
            weight, loss = self.compute(ranks, step, batches, say, mean=mean, first=first, last=last)
        finally:
            self.gradients.parts.end()
        return weight, loss, waited_us

    def compute(
        self,
        ranks: tuple[int, ...],
        step: int,
        batches: Batches,
        say: Callable[[bytes], None] | None = None,
        allow_nonfinite: bool = False,
        mean: bool = False,
        first: bool = True,
        last: bool = True,
    ) -> tuple[float, float]:
        """The gradient of these ranks' batches, added up: weight and loss."""
        if first:
            self._load_buffers()
        for module, training in self.modes:
            if module.training is not training:
                module.training = training
        self.job.__dict__["step"] = step
        if first:
            self.gradients.begin()
        weight, loss = 0.0, 0.0
        for part, (batch, _) in enumerate(batches):
            if part > 0 or not first:
                self.gradients.again()
            seeds.set_all(seeds.key_of_part(self.seed, "gradient", ranks[0], step, part), self.cuda)
            # What is finished before the last batch is not final.
            self.gradients.parts.begin(say if last and part + 1 == len(batches) and not self.apart else None)
            of_batch = self._of_batch(batch, mean)
            if not allow_nonfinite and not math.isfinite(of_batch[1]):
                raise NonFinite(f"the loss of step {step}, rank {ranks[0]} is {of_batch[1]}")
            weight, loss = weight + of_batch[0], loss + of_batch[1]
        if last:
            self.gradients.end()
            self._hand_out(gives_buffers=0 in ranks)
        return weight, loss

    def _of_batch(self, batch: Any, mean: bool) -> tuple[float, float]:
        """Adds a batch's gradient to those before it: its weight and loss."""
        if self.cuda:
            batch = moved(batch, self.device)
        with user_code("loss()"):
            found = self.job.loss(self.model, batch)
        if self.gradients.are_there():
            raise Refused(
                "loss() computes gradients itself (it calls backward()), as a loop of one's own does, which cannot be kept; return the loss "
                "alone, Ebb runs backward and steps the optimizers; of several losses, as of a GAN, return the sum, and keep from each network "
                "what is not its own (`.detach()`, or its parameters detached by torch.func.functional_call)"
            )
        loss, weight = returned.pair(found)
        if mean:
            self.gradients.divide_by(returned.number(weight))
        with user_code("backward"):
            loss.backward()
        loss_value, weight_value = float(loss.detach()), returned.number(weight)
        if not (math.isfinite(weight_value) and weight_value >= 0):
            raise Refused(f"loss() returned the weight {weight_value}; it must be a finite number from 0")
        self._check_parameters()
        self.gradients.check()
        self.gradients.done()
        return weight_value, loss_value

    def _hand_out(self, gives_buffers: bool) -> None:
        """Completes the gradient segment: the device's gradient, touched bits, the buffers of who computed for rank 0."""
        if self.apart:
            self.host_gradient.copy_(self.gradient_flat)
        touched = [1.0 if reached else 0.0 for reached in self.gradients.reached()]
        struct.pack_into(f"<{len(touched)}f", self.gradient_segment.map, self.gradient_elements * WORD_BYTES, *touched)
        if not self.buffers:
            return
        if gives_buffers:
            self._collect_buffers()
            self.place.buffers.copy_(_halves(self.working_buffers.cpu()))
        else:
            self.place.buffers.zero_()

    def _load_buffers(self) -> None:
        if self.buffers:
            self.working_buffers.copy_(self.replica_buffers)
            for (module, key, _), view in zip(self.buffers, self.buffer_views):
                if module._buffers.get(key) is not view:
                    module._buffers[key] = view

    def _collect_buffers(self) -> None:
        """Buffers that user code replaced instead of changing them come back into the working copy."""
        for (module, key, slot), view in zip(self.buffers, self.buffer_views):
            found = module._buffers.get(key)
            if found is view:
                continue
            if found is None or found.shape != view.shape or found.dtype != view.dtype:
                now = "nothing" if found is None else f"{found.dtype} {list(found.shape)}"
                raise Refused(
                    f"the buffer `{slot.name}` was {view.dtype} {list(view.shape)} and became {now}; a buffer must keep its shape and type"
                )
            view.copy_(found)
            module._buffers[key] = view

    def _check_parameters(self) -> None:
        for place, key, parameter, name in self.homes:
            if place.get(key) is not parameter:
                raise Refused(f"the parameter `{name}` was replaced by another object during training; {_KEEP}")
        for parameter, address, name in self.addresses:
            if parameter.requires_grad is not self.trains[name]:
                raise Refused(
                    f"`requires_grad` of the parameter `{name}` was changed during training; what is trained must be "
                    "fixed when model() returns"
                )
            if parameter.data_ptr() != address:
                raise Refused(f"the parameter `{name}` was moved to other memory or another type during training; {_KEEP}")

    # ------------------------------------------------------------------------------------------------ update

    def apply(self, step: int, factor: float, place: int = 0, stride: int = 1, rate_factor: float = 1.0) -> None:
        """Turns the replica at `step` into that `stride` steps further, by their mean gradient in the memory of this number, which stays as it is. `factor` is the
        schedule's on the rates of the job file's optimizer, `rate_factor` that on all rates of an update that takes several steps."""
        self._use(place)
        if not self.whole:
            raise RuntimeError("an update was asked for where only the part for computing gradients is held")
        if self.apart:
            self.gradient_flat.copy_(self.host_gradient)
        touched = struct.unpack_from(f"<{len(self.trainable)}f", self.gradient_segment.map, self.gradient_elements * WORD_BYTES)
        for (_, parameter), bit, view in zip(self.trainable, touched, self.place.views):
            if bit <= 0:
                parameter.grad = None
            elif self.gradients_kept and parameter.dtype is torch.float32:
                parameter.grad = view
            else:
                parameter.grad = view.to(parameter.dtype, copy=not self.gradients_kept)
        self._decode_buffers()
        if self.parts.built_in_rates is not None:
            for group, rate in zip(self.optimizer.param_groups, self.parts.built_in_rates):
                group["lr"] = rate * factor
        if self.own_update:
            seeds.set_all(seeds.key(self.seed, "update", step), self.cuda)
        unchanged = self.gradient_flat._version
        with user_code(f"the step of the optimizer {name_of(self.optimizer)}"), strides.taken(self.optimizer, stride, rate_factor):
            self.optimizer.step()
        if self.gradient_flat._version != unchanged:
            raise Refused(f"the optimizer {name_of(self.optimizer)} changed a gradient in place; write it as a class of your own")
        for _, parameter in self.trainable:
            parameter.grad = None
        self.optimizer_state.settle()
        end = step + stride
        for taken in range(step, end) if self.scheduler is not None else ():
            if self.job.scheduler_due(taken):
                schedulers.step(self.scheduler, look=not self.scheduler_tried)
                self.scheduler_tried = True
        self.job.__dict__.update(step=end - 1, update_steps=stride)
        if self.own_update:
            self._on_step(end - 1)
        self._check_parameters()
        self._write_python()

    def _on_step(self, step: int) -> None:
        before = None if self.on_step_tried else self.remembered()
        with torch.no_grad(), user_code("on_step()"):
            self.job.on_step(self.model, step)
        if before is not None:
            self.on_step_tried = True
            name = attributes.changed(before, self.remembered())
            if name is not None:
                raise Refused(
                    f"on_step() changed `{name}`, which an executor that joins later would not know; keep it in a "
                    "tensor that state() names, "
                    "or compute it from the step"
                )
        if self.buffers:
            self._collect_buffers()
            self.replica_buffers.copy_(self.working_buffers)
        for (name, tensor), view in zip(self.parts.state, self.state_views):
            if tensor.data_ptr() != view.data_ptr():
                raise Refused(f"on_step() replaced the memory of the state `{name}`; change it in place, for example by `copy_` or `lerp_`")

    def remembered(self) -> dict[str, str]:
        """What Python remembers of this program beside the replica."""
        roots = [*attributes.of_model(self.job, self.model), *attributes.of_code(self.settings.code)]
        return attributes.snapshot(roots, [*self.model.parameters(), *self.model.buffers(), *(tensor for _, tensor in self.parts.state)])

    def _decode_buffers(self) -> None:
        if self.buffers:
            self.replica_buffers.copy_(self.place.buffers.to(torch.uint16).view(torch.uint8))
            self._load_buffers()

    def _plain(self) -> dict[str, Any]:
        state = None
        if self.scheduler is not None:
            with user_code("the scheduler's state_dict()"):
                state = python_state.encode(self.scheduler.state_dict(), "the scheduler's state")
        return {"optimizer": self.optimizer_state.plain(), "scheduler": state}

    def _python_memory(self) -> memoryview:
        start = self.python_word * WORD_BYTES
        return memoryview(self.replica_segment.map)[start : start + self.python_bytes]

    def _write_python(self) -> None:
        if self.scheduler is None and self.optimizer_state.is_as_told() and self.python_written is not None:
            return
        state = python_state.to_bytes(self._plain())
        if state != self.python_written:
            python_state.write(state, self._python_memory())
            self.python_written = state

    # ------------------------------------------------------------------------------------------------ replica

    def hold(self, compute_only: bool = False) -> None:
        """Takes over the replica that was written into the segment."""
        if self.apart:
            end = (self.compute_words if compute_only else self.replica_words) * WORD_BYTES
            self.replica[:end].copy_(self.host_replica[:end])
        self._load_buffers()
        self.python_written = None
        self.whole = not compute_only
        if compute_only:
            return
        values = python_state.read(self._python_memory())
        if self.scheduler is not None:
            present = self.scheduler.state_dict()
            self.scheduler.load_state_dict(python_state.decode(values["scheduler"], present))
        self.optimizer_state.load_plain(values["optimizer"])

    def snapshot(self) -> None:
        """Makes the segment equal to the device's replica."""
        if not self.apart:
            return
        slots = [
            (slot, view)
            for slots, views in zip(self.optimizer_state.slots, self.optimizer_state.views)
            for slot, view in _on_host(slots, views)
        ]
        kept = [(slot.view(self.host_replica), view.clone()) for slot, view in slots]
        end = self.python_word * WORD_BYTES
        self.host_replica[:end].copy_(self.replica[:end])
        for place, value in kept:
            place.copy_(value)

    def evaluate(self, rank: int, part: int, rows: int) -> tuple[dict[str, float], int]:
        """Sums over the rows of a held-out batch, and what to divide them by."""
        batch, rows = self._held_out_batch(rank, part, rows)
        if rows == 0:
            return {}, 0
        self._load_buffers()
        if self.cuda:
            batch = moved(batch, self.device)
        seeds.set_all(seeds.key(self.seed, "evaluate", rank, part), self.cuda)
        # Also what state() names: an average that is evaluated must not take in the statistics of held-out rows.
        others = [(module, module.training) for part in self.parts.state_modules for module in part.modules()]
        for module in (self.model, *self.parts.state_modules):
            module.eval()
        try:
            with torch.no_grad(), user_code("evaluate()"):
                found = self.job.evaluate(self.model, batch)
                if found is None:
                    loss, weight = self.job.loss(self.model, batch)
                    # The count is of rows: a weight need not be whole.
                    found = {"loss": float(loss) * (rows / float(weight)) if float(weight) else 0.0}, rows
        finally:
            self.model.train()
            for module, training in others:
                module.training = training
            self._load_buffers()
        return returned.sums(found)

    def _held_out_batch(self, rank: int, part: int, rows: int) -> tuple[Any, int]:
        if self.parts.held_out is not None:
            return self.parts.held_out.batch(rank, part)
        return self.shared_batches().batch(rank, part, rows) if rows else (None, 0)

    def shared_batches(self) -> SharedBatches:
        """Batches of an Ebb dataset, also where the program trains on one of its own."""
        sample = self.settings.held_out_sample or self.settings.sample
        if sample is None:
            raise Refused("an evaluation reads an Ebb dataset, and none is named in the job file's `evaluation:`")
        return SharedBatches(sample, self.batch_segment, self.job, self.seed, self.cuda)

    def export(self) -> dict[str, torch.Tensor]:
        """The model's tensors by PyTorch's names, in its order."""
        self._load_buffers()
        with user_code("state_dict()"):
            return {name: value for name, value in self.model.state_dict().items() if isinstance(value, torch.Tensor)}

    def numeric_class(self) -> dict[str, Any]:
        """What its bits depend on beside job, code and data."""
        return {
            **numerics.describe(self.settings.device, self.settings.threads, self.optimizer),
            "gradient": self.gradient_digest,
            "execution": compiled.execution(self.job, self.model, self.settings.code),
        }

    def describe(self) -> dict[str, Any]:
        """The build's reply."""
        slots = [(slot, True) for slot in self.trainable_slots] + [(slot, False) for slot in self.frozen_slots]
        return {
            "replica_words": self.replica_words,
            "compute_words": self.compute_words,
            "gradient_elements": self.gradient_elements,
            "extra_elements": self.extra_elements,
            "own_rows": self.parts.own_rows,
            "own_steps_per_epoch": self.data.steps_per_epoch,
            "held_out_parts": self.parts.held_out.steps_per_epoch if self.parts.held_out is not None else None,
            "class": self.numeric_class(),
            "parameters": [
                {
                    "name": s.name,
                    "shape": list(s.shape),
                    "dtype": str(s.dtype).removeprefix("torch."),
                    "word": s.word,
                    "trainable": trainable,
                }
                for s, trainable in slots
            ],
            "parameter_count": sum(s.elements for s, _ in slots),
        }


class Place:
    """Memory for a gradient and what travels along, with a view for each trained parameter."""

    def __init__(self, program: Program, segment: Segment) -> None:
        flat, gradients = segment.bytes.view(torch.float32), program.gradient_elements
        self.segment, self.host = segment, flat[:gradients]
        # Those of rank 0, each half of a word as a number.
        self.buffers = flat[gradients + program.touched_elements : gradients + program.extra_elements]
        raw = (program.gradient_flat if program.apart else self.host).view(torch.uint8)
        self.views = [slot.view(raw) for slot in program.gradient_slots]


def _keeps_gradients(optimizer: torch.optim.Optimizer | Several) -> bool:
    """Whether a step leaves gradients as they are. PyTorch's own do; others are given copies, because the executor may still need the mean."""
    return all(type(one).__module__.startswith("torch.optim.") and not _hooks(one) for one in each(optimizer))


def _hooks(optimizer: torch.optim.Optimizer) -> Any:
    return getattr(optimizer, "_optimizer_step_pre_hooks", None) or getattr(optimizer, "_optimizer_step_post_hooks", None)


_KEEP = "Ebb keeps parameters where they are: no .to(), .double(), load_state_dict(assign=True) or new Parameter after model()"


def _halves(buffers: torch.Tensor) -> torch.Tensor:
    """Bytes as numbers that a float32 holds exactly, so that buffers travel in the sum of gradients."""
    return buffers.view(torch.uint16)


def _on_host(slots: list[tuple[str, Slot]], views: dict[str, torch.Tensor]) -> list[tuple[Slot, torch.Tensor]]:
    return [(slot, views[key]) for key, slot in slots if slot.on_host]
