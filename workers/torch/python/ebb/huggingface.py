"""A `transformers.Trainer` as a job: its model, data, loss, optimizer and schedule, without its loop. Never imports transformers.

What a Trainer's loss divides by is found by trying: with L(n) the loss for `num_items_in_batch = n` on one batch and seed,
L(1) = 2·L(2) bit for bit means that L(1) is the sum; L(1) = L(2), that it is a mean. Anything else is refused.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from typing import Any

import torch

from ebb import seeds
from ebb.data import moved
from ebb.job import Job
from ebb.refuse import Refused, user_code

# What a Trainer brings along by itself; everything else is somebody's wish that would not come true.
KNOWN_CALLBACKS = {"DefaultFlowCallback", "ProgressCallback", "PrinterCallback", "NotebookProgressCallback"}
LOOP_METHODS = (
    "train", "_inner_training_loop", "_run_epoch", "training_step", "_prepare_inputs", "get_train_dataloader", "_get_train_sampler",
    "get_batch_samples", "autocast_smart_context_manager", "compute_loss_context_manager", "create_optimizer_and_scheduler", "_clip_grad_norm",
    "_maybe_log_save_evaluate", "log", "save_model", "_save", "_save_checkpoint",
)  # fmt: skip
EVALUATION_METHODS = ("evaluate", "evaluation_loop", "prediction_step", "get_eval_dataloader", "_get_eval_sampler")


class TrainerJob(Job):
    """The job of a Trainer."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._sums: bool | None = None
        args = trainer.args
        self.micro_batch_rows = getattr(trainer, "micro_batch_rows", None)
        self.loader = {"num_workers": int(getattr(args, "dataloader_num_workers", 0) or 0)}
        _refuse_methods(trainer)
        _refuse_arguments(args)
        self._refuse_evaluation()
        for callback in trainer.callback_handler.callbacks:
            kind = type(callback)
            if kind.__module__.startswith("transformers.integrations"):  # added for whatever is installed, often without a wish
                print(f"the Trainer's callback {kind.__name__} is not called here; losses and evaluations are on the job", file=sys.stderr)
            elif kind.__name__ not in KNOWN_CALLBACKS:
                raise Refused(
                    f"the Trainer's callback {kind.__name__} would not be called: its loop does not run here; leave it "
                    "out, or write what it does "
                    "in `on_step` of an ebb.Job"
                )

    def _refuse_evaluation(self) -> None:
        trainer = self._trainer
        for name in ("compute_metrics", "preprocess_logits_for_metrics"):
            if getattr(trainer, name, None) is not None:
                raise Refused(
                    f"the Trainer's {name} would not be called: Ebb adds up the loss of held-out rows over executors, and no predictions; leave "
                    "it out, or write `evaluate()` of an ebb.Job, which returns sums by name"
                )
        strategy = str(getattr(getattr(trainer.args, "eval_strategy", None), "value", "no"))
        if strategy != "no" and not self.spec.get("evaluation"):
            raise Refused(
                f"TrainingArguments(eval_strategy='{strategy}') evaluates in the Trainer's own loop, which does not run here; write "
                "`evaluation: {every_steps: …}` in the job file, or leave it out"
            )

    def model(self) -> Any:
        args = self._trainer.args
        self._check_clip()
        model = self._trainer.model
        if getattr(args, "gradient_checkpointing", False):
            model.gradient_checkpointing_enable(
                gradient_checkpointing_kwargs=args.gradient_checkpointing_kwargs or {"use_reentrant": False}
            )
        return model

    def _check_clip(self) -> None:
        wanted = float(getattr(self._trainer.args, "max_grad_norm", 0.0) or 0.0)
        given = float(self.spec.get("gradient_clip_norm") or 0.0)
        if wanted != given:
            raise Refused(
                f"the Trainer clips gradients at max_grad_norm={wanted:g} (1 unless you say otherwise), and the job file "
                f"{f'at gradient_clip_norm: {given:g}' if given else 'does not clip'}; make them equal: write "
                f"`gradient_clip_norm: {wanted:g}` "
                "in the job file, or max_grad_norm=0 in the TrainingArguments"
            )

    def dataset(self) -> Any:
        if self._trainer.train_dataset is None:
            return None
        dataset = self._trainer.train_dataset
        if _is_arrow_dataset(dataset):
            return self._trainer._remove_unused_columns(dataset, description="training")
        return dataset

    def held_out(self) -> Any:
        dataset = self._trainer.eval_dataset
        if isinstance(dataset, dict):
            raise Refused(
                f"the Trainer's eval_dataset is a dict of {len(dataset)} datasets, and Ebb evaluates on one; give it one of them"
            )
        return self._trainer._remove_unused_columns(dataset, description="evaluation") if _is_arrow_dataset(dataset) else dataset

    def collate(self, rows: Any) -> Any:
        collator = self._trainer.data_collator
        if not _is_arrow_dataset(self._trainer.train_dataset):
            collator = self._trainer._get_collator_with_removed_columns(collator, description="training")
        return collator(rows)

    def optimizer(self, model: Any) -> Any:
        optimizer = self._trainer.create_optimizer()
        return optimizer if optimizer is not None else self._trainer.optimizer

    def scheduler(self, optimizer: Any) -> Any:
        if self.steps is None:
            raise Refused("a Trainer's schedule needs to know how many steps there are; write `steps:` or `epochs:` in the job file")
        return self._trainer.create_scheduler(num_training_steps=self.steps, optimizer=optimizer)

    def loss(self, model: Any, batch: Any) -> Any:
        batch = self._as_inputs(batch)
        rows = _rows(batch)
        if self._sums:
            count = self._trainer._get_num_items_in_batch([batch], torch.device(self.device))
            with self._autocast():
                return self._trainer.compute_loss(model, dict(batch), num_items_in_batch=torch.tensor(1.0, device=self.device)), count
        with self._autocast():
            loss = self._trainer.compute_loss(model, dict(batch))
        return loss * rows, rows

    def prepare(self, program: Any, batch: Any) -> None:
        """Finds out, on the self-check's batch, whether the loss is a sum or a mean."""
        if program.cuda:
            batch = moved(batch, program.device)
        batch = self._as_inputs(batch)
        trainer = self._trainer
        with user_code("compute_loss()"):
            accepts = "num_items_in_batch" in inspect.signature(trainer.compute_loss).parameters
            if not accepts or trainer._get_num_items_in_batch([batch], torch.device(self.device)) is None:
                self._sums = False
                return
            found = []
            for items in (1.0, 2.0):
                program._load_buffers()
                seeds.set_all(seeds.key(self.seed, "probe"), program.cuda)
                with torch.no_grad(), self._autocast():
                    found.append(
                        float(trainer.compute_loss(program.model, dict(batch), num_items_in_batch=torch.tensor(items, device=self.device)))
                    )
        one, two = found
        if one == two:
            self._sums = False
        elif one == 2 * two:
            self._sums = True
        else:
            raise Refused(
                f"compute_loss() of {type(trainer).__name__} is neither a sum divided by num_items_in_batch nor a mean that ignores it "
                f"({one!r} for 1 item, {two!r} for 2); divide the whole summed loss by num_items_in_batch"
            )

    def _as_inputs(self, batch: Any) -> Any:
        """An Ebb dataset's tokens are a causal language model's inputs and labels."""
        if isinstance(batch, torch.Tensor) and batch.dtype is torch.int64:
            return {"input_ids": batch, "labels": batch.clone()}
        return batch

    def _autocast(self) -> Any:
        if getattr(self._trainer.args, "bf16", False):
            return torch.autocast(self.device, torch.bfloat16)
        return contextlib.nullcontext()


def _refuse_methods(trainer: Any) -> None:
    for name in (*LOOP_METHODS, *EVALUATION_METHODS):
        defining = next((kind for kind in type(trainer).__mro__ if name in vars(kind)), None)
        if defining is None or defining.__module__.startswith("transformers."):  # of a Trainer of theirs, as Seq2SeqTrainer
            continue
        if name in LOOP_METHODS:
            raise Refused(
                f"{type(trainer).__name__} overrides `{name}`, which belongs to the Trainer's own loop and is not called here; "
                "override `compute_loss`, or write an ebb.Job"
            )
        raise Refused(
            f"{type(trainer).__name__} overrides `{name}`, which belongs to the Trainer's own evaluation and is not called here: Ebb evaluates "
            "`compute_loss` on the eval_dataset; leave it out, or write `evaluate()` of an ebb.Job"
        )


def _refuse_arguments(args: Any) -> None:
    for name, allowed, advice in (
        ("fp16", False, "a loss scale depends on what happened before; use bf16=True"),
        ("gradient_accumulation_steps", 1, "write the whole batch as `batch_size:` and `workers:` in the job file"),
        ("deepspeed", None, "Ebb keeps whole replicas"),
        ("fsdp", None, "Ebb keeps whole replicas"),
        ("neftune_noise_alpha", None, "its hook belongs to the Trainer's own loop"),
        ("torch_compile", False, "compile the model where you make it"),
        ("load_best_model_at_end", False, "the model is that of the last step"),
        ("predict_with_generate", False, "Ebb evaluates the loss of held-out rows, and nothing that is generated"),
        ("push_to_hub", False, "the model is in Ebb: `ebb model get JOB`"),
        ("auto_find_batch_size", False, "the bits depend on `batch_size:` in the job file"),
        ("train_sampling_strategy", "random", "Ebb chooses which rows make a batch; write `shuffle: none` in the job file for their order"),
    ):
        value = getattr(args, name, allowed)
        if value and value != allowed:
            raise Refused(f"TrainingArguments({name}={value!r}) is not kept here: {advice}")


def _is_arrow_dataset(dataset: Any) -> bool:
    return any(kind.__module__.startswith("datasets.") and kind.__name__ == "Dataset" for kind in type(dataset).__mro__)


def _rows(batch: Any) -> int:
    for value in batch.values():
        if isinstance(value, torch.Tensor) and value.ndim:
            return int(value.shape[0])
    raise Refused("the collator gives no tensor to count rows by")
