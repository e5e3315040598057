"""Every refusal is provoked, and its text read."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import tempfile
import unittest
from typing import Any

import harness
from harness import Failed, Worker

# entry, who is to blame, what the text must say; a list so that one can read all texts beside each other.
AT_BUILD = [
    ("refused:PrivateGenerator", "refused", "`generator` changed by computing a gradient"),
    ("refused:HiddenGenerator", "refused", "`refused._hidden` changed by computing a gradient"),
    ("refused:Counter", "refused", "`3.calls` changed by computing a gradient"),
    ("refused:CounterInJob", "refused", "`CounterInJob.seen` changed by computing a gradient"),
    ("refused:OwnLoop", "refused", "loss() computes gradients itself (it calls backward())"),
    ("refused:Adversaries", "refused", "loss() computes gradients itself (it calls backward())"),
    ("refused:ScalesLoss", "refused", "the loss is scaled by a GradScaler, whose scale depends on the steps before"),
    ("refused:ReadsBesideItself", "user", "(it is in the code folder, which is not the working directory; write Path(__file__).parent / 'vision.py')"),
    ("refused:WritesParameters", "refused", "`0.weight` changed while a gradient was computed"),
    ("refused:SyncBatchNorm", "refused", "the module `1` (SyncBatchNorm) talks to other processes"),
    ("refused:Parallel", "refused", "the model (DataParallel) distributes the training itself"),
    ("refused:ProcessGroup", "refused", "torch.distributed is initialised"),
    ("refused:Sharded", "refused", "the model (FullyShardedDataParallel) distributes the training itself"),
    ("refused:ShardedInPlace", "refused", "the model (FSDPSequential) distributes the training itself"),
    ("refused:ReplicatedByDdp", "refused", "the model (DistributedDataParallel) distributes the training itself"),
    ("refused:TensorParallel", "refused", "the parameter `5.weight` is sharded over devices (a DTensor)"),
    ("refused:Pipeline", "refused", "model() returned a PipelineStage, which is one process's part of a pipeline"),
    ("refused:Collective", "refused", "loss() calls torch.distributed, and executors come and go"),
    ("refused:CollectiveOfOwnGroup", "refused", "torch.distributed is initialised"),
    ("refused:Autotuned", "refused", "the model is compiled with max_autotune"),
    ("refused:AutotunedInPlace", "refused", "the module `0` is compiled with max_autotune"),
    ("refused:AutotunedFunction", "refused", "the function `AutotunedFunction.scaled` is compiled with coordinate_descent_tuning"),
    ("refused:MemoryOfDevice", "memory", "out of memory in loss(): CUDA out of memory. Tried to allocate 2.00 GiB"),
    ("refused:Lazy", "refused", "the parameter `1.weight` belongs to a lazy module"),
    ("refused:Double", "refused", "the parameter `0.weight` has type torch.float64"),
    ("refused:Complex", "refused", "the parameter `phase` is complex"),
    ("refused:Expanded", "refused", "the parameter `scale` is a view that skips or repeats elements"),
    ("refused:AllFrozen", "refused", "the model has no parameter to train"),
    ("refused:NoModule", "refused", "model() returned a function"),
    ("refused:Lbfgs", "refused", "the optimizer LBFGS looks at all parameters together"),
    ("refused:SparseAdam", "refused", "the optimizer SparseAdam wants sparse gradients"),
    ("refused:Closure", "refused", "the optimizer Needs needs a closure"),
    ("refused:LateState", "refused", "the optimizer Late makes its state second of `0.weight` later than at the first step"),
    ("refused:AttributeState", "refused", "the optimizer Counts keeps state in its attribute `taken`"),
    ("refused:ForeignParameters", "refused", "that is none of the model's"),
    ("refused:Plateau", "refused", "the scheduler ReduceLROnPlateau looks at a measured loss"),
    ("refused:SchedulerOfBuiltIn", "refused", "a scheduler of your own needs an optimizer of your own"),
    ("refused:SchedulerState", "refused", "the scheduler's state.remembers is a object"),
    ("refused:Moves", "refused", "the parameter `0.weight` was moved to other memory"),
    ("refused:Assigns", "refused", "the parameter `0.weight` was replaced by another object"),
    ("refused:BufferShape", "refused", "the buffer `1.running_mean` was torch.float32 [8] and became torch.float32 [9]"),
    ("refused:Unpool", "refused", "has no deterministic kernel on this device"),
    ("refused:OneValue", "refused", "loss() returned a Tensor; it must return two things"),
    ("refused:Detached", "refused", "depends on no trainable parameter"),
    ("refused:Vector", "refused", "loss() must return the summed loss as a tensor of one element"),
    ("refused:NegativeWeight", "refused", "loss() returned the weight -1.0"),
    ("refused:Stream", "refused", "the dataset Endless can only be iterated"),
    ("refused:NoRows", "refused", "the dataset Images has no rows"),
    ("refused:NoData", "refused", "the job names no `dataset:`"),
    ("refused:StateOfText", "refused", "state() gives a str as `ema`"),
    ("refused:NotAJob", "refused", "gives a int; Ebb trains a subclass of ebb.Job"),
    ("refused:Absent", "refused", "the module `refused` has no `Absent`"),
    ("refused.py:Absent", "refused", "names a file; write the module's name: `entry: refused:Job`"),
    ("refused", "refused", "names no class, and the module calls ebb.fit 0 times"),
    ("refused:OptimizersOfOneParameter", "refused", "is in two of the optimizers that optimizer() returned"),
    ("refused:OptimizersOfText", "refused", "optimizer() returned a list with a str"),
    ("refused:LoaderOfBatches", "refused", "`loader` gives `batch_size` to the DataLoader"),
    ("refused:LoaderOfWords", "refused", "`loader` asks for num_workers='two'"),
    ("refused:FailsInLoader", "user", "KeyError in the dataset's `__getitem__`: 'no such key'"),
    ("refused:Raises", "user", "NameError in loss()"),
    ("refused:Exits", "user", "SystemExit in model(): enough"),
    ("absent_module:Job", "refused", "the module `absent_module` is not in the code folder; it holds "),
]
REMEMBERS = [
    ("remembers:Numpy", "refused", "`NumpyRows.rng` changed by making a batch a second time"),
    ("remembers:Random", "refused", "`RandomRows.random` changed by making a batch a second time"),
    ("remembers:Torch", "refused", "`TorchRows.generator` changed by making a batch a second time"),
    ("remembers:Counting", "refused", "`CountingRows.calls` changed by making a batch a second time"),
    ("remembers:InSubset", "refused", "`Subset.dataset.rng` changed by making a batch a second time"),
    ("remembers:ReadAhead", "refused", "`NumpyRows.rng` changed by making a batch a second time"),
    ("remembers:HeldOut", "refused", "`RandomRows.random` changed by making a batch a second time"),
    ("remembers:Collates", "refused", "`Collates.mix` changed by making a batch a second time"),
    ("remembers:CollatesNative", "refused", "`CollatesNative.mix` changed by making a batch a second time"),
    ("remembers:Hidden", "refused", "the batches of dataset() depend on what was read before"),
    ("remembers:Augmented", "refused", "the batches of dataset() differ between two processes"),
    ("remembers:Metered", "refused", "`Metered.meter.n` changed by computing a gradient"),
    ("remembers:Sampled", "refused", "`Sampled.meter.inner['rng']` changed by computing a gradient"),
    ("remembers:GlobalCounter", "refused", "`remembers.CALLS` changed by computing a gradient"),
    ("remembers:GlobalList", "refused", "`remembers._seen.length` changed by computing a gradient"),
    ("remembers:OfClass", "refused", "`remembers.OfClass.losses` changed by computing a gradient"),
    ("remembers:InClosure", "refused", "`remembers._scaled.generator` changed by computing a gradient"),
    ("remembers:Teacher", "refused", "`Teacher.teacher._buffers['num_batches_tracked']` changed by computing a gradient"),
    ("remembers:Entropy", "refused", "computed twice it differs; look for a random generator of its own"),
    ("remembers:FirstCounts", "refused", "the gradient of `0.weight` differs between two processes"),
    ("remembers:OfProcess", "refused", "`0.weight` has other values in another process, so it differs between two processes"),
    ("remembers:OnceOnly", "refused", "differs between two processes: in one it can be trained, and in the other not (OSError"),
    ("remembers:OptimizerMeter", "refused", "the optimizer Tracked keeps state in its attribute `meter.n`"),
    ("remembers:OptimizerAround", "refused", "the optimizer Around keeps state in another one, its attribute `inner`"),
    ("remembers:Across", "refused", "the optimizer GlobalNorm looks at all parameters together"),
]
HUGGING_FACE = [
    ("hugging:OwnStep", "refused", "OwnStep overrides `training_step`"),
    ("hugging:Odd", "refused", "compute_loss() of Odd is neither a sum divided by num_items_in_batch nor a mean"),
    ("hugging:stopping", "refused", "the Trainer's callback EarlyStoppingCallback would not be called"),
    ("hugging:accumulating", "refused", "TrainingArguments(gradient_accumulation_steps=2) is not kept here"),
    ("hugging:measured", "refused", "the Trainer's compute_metrics would not be called"),
    ("hugging:reduced", "refused", "the Trainer's preprocess_logits_for_metrics would not be called"),
    ("hugging:OwnEvaluate", "refused", "OwnEvaluate overrides `evaluate`, which belongs to the Trainer's own evaluation"),
    ("hugging:OwnPrediction", "refused", "OwnPrediction overrides `prediction_step`, which belongs to the Trainer's own evaluation"),
    ("hugging:OwnLog", "refused", "OwnLog overrides `log`, which belongs to the Trainer's own loop"),
    ("hugging:OwnInputs", "refused", "OwnInputs overrides `_prepare_inputs`, which belongs to the Trainer's own loop"),
    ("hugging:best", "refused", "TrainingArguments(load_best_model_at_end=True) is not kept here: the model is that of the last step"),
    ("hugging:generating", "refused", "(predict_with_generate=True) is not kept here: Ebb evaluates the loss of held-out rows"),
    ("hugging:evaluated", "refused", "write `evaluation: {every_steps: …}` in the job file"),
    ("hugging:in_order", "refused", "write `shuffle: none` in the job file"),
    ("hugging:CountsLosses", "refused", "`CountsLosses.losses` changed by computing a gradient"),
    ("hugging:own_collator", "refused", "`Collator.generator` changed by making a batch a second time"),
    ("hugging:masked", "refused", "`DataCollatorForLanguageModeling.generator` changed by making a batch a second time"),
    ("hugging:causal without clip", "refused", "write `gradient_clip_norm: 1` in the job file, or max_grad_norm=0"),
]
LIGHTNING = [
    ("bolts:Manual", "refused", "Manual optimizes manually"),
    ("bolts:OwnOptimizerStep", "refused", "OwnOptimizerStep overrides `optimizer_step`"),
    ("bolts:AsksTrainer", "refused", "the LightningModule asks its Trainer for `num_training_batches`"),
    ("bolts:OwnValidationEnd", "refused", "OwnValidationEnd overrides `on_validation_epoch_end`"),
    ("bolts:OwnCheckpoint", "refused", "OwnCheckpoint overrides `on_save_checkpoint`"),
    ("bolts:with_moved_rows", "refused", "MovesRows overrides `on_after_batch_transfer`, which belongs to a Trainer's loop"),
    ("bolts:OldEpochEnd", "refused", "OldEpochEnd overrides `training_epoch_end`"),
    ("bolts:OwnTeardown", "refused", "OwnTeardown overrides `teardown`"),
    ("bolts:AsksOptimizers", "refused", "the LightningModule calls `self.optimizers()`, which needs a Trainer"),
    ("bolts:Gathers", "refused", "the LightningModule calls `self.all_gather()`, which needs a Trainer"),
    ("bolts:OtherCollate", "refused", "val_dataloader() makes batches by the collate_fn `pairs` and train_dataloader() by `default_collate`"),
    ("bolts:Weighted", "refused", "train_dataloader() draws its rows by a WeightedRandomSampler"),
    ("bolts:Replaced", "refused", "train_dataloader() draws its rows by a RandomSampler with replacement"),
    ("bolts:SeedsWorkers", "refused", "train_dataloader() gives the DataLoader a worker_init_fn"),
    ("bolts:Measures", "refused", "compute the batch's own by torchmetrics.functional"),
    ("bolts:MeasuresTraining", "refused", "compute the batch's own by torchmetrics.functional"),
    ("bolts:TwoOptimizers", "refused", "configure_optimizers() returned 2 optimizers"),
]


class Refusals(unittest.TestCase):
    def provoke(self, entry: str, kind: str, text: str, **message: Any) -> None:
        entry, _, unclipped = entry.partition(" ")
        spec = message.pop("spec", {"steps": 9} if unclipped else {"steps": 9, "gradient_clip_norm": 1.0})
        worker = Worker()
        try:
            with self.assertRaises(Failed) as caught:
                worker.build(entry=entry, spec={**spec, "evaluation": {"every_steps": 3}} if entry in ("bolts:OtherCollate", "bolts:Measures") else spec, threads=1, **message)
            self.assertIn(text, caught.exception.what)
            self.assertEqual(kind, caught.exception.kind)
            self.assertLess(len(caught.exception.what), 700)
            self.assertEqual(kind == "user", bool(caught.exception.traceback))
        finally:
            worker.close()

    def test_at_build(self) -> None:
        for entry, kind, text in AT_BUILD:
            with self.subTest(entry=entry):
                self.provoke(entry, kind, text)

    def test_what_is_remembered_where_ebb_has_to_look_for_it(self) -> None:
        sample = {"kind": "classified", "shape": [3, 8, 8], "classes": 5}
        folder = self.enterContext(tempfile.TemporaryDirectory())
        for entry, kind, text in REMEMBERS:
            message: dict[str, object] = {"parameters": {"mark": os.path.join(folder, "mark")}}
            if "Native" in entry:
                message.update(sample=sample, batch_bytes=4 * (8 + 192 * 4), rows=64)
            if "HeldOut" in entry:
                message["spec"] = {"steps": 9, "evaluation": {"every_steps": 3}}
            with self.subTest(entry=entry):
                self.provoke(entry, kind, text, **message)

    def test_what_may_be_remembered(self) -> None:
        """Caches of rows, open files and noise of the seeded generators change nothing."""
        for entry in ("Fine", "Noisy"):
            worker = Worker()
            try:
                worker.build(entry=f"remembers:{entry}")
            finally:
                worker.close()

    def test_a_scheduler_that_tells_not_all(self) -> None:
        worker = Worker()
        try:
            worker.build(entry="remembers:SchedulerForgets")
            with self.assertRaises(Failed) as caught:
                worker.apply(worker.compute(0, 0)[0], 0, 1.0)
            self.assertIn("the scheduler Forgets changed its attribute `meter.n`", caught.exception.what)
        finally:
            worker.close()

    def test_a_second_process_that_ends_takes_the_first_along(self) -> None:
        worker = Worker()
        with self.assertRaises(EOFError):
            worker.build(entry="remembers:EndsProcess")
        self.assertEqual(9, worker.close())

    @unittest.skipUnless(harness.has("transformers"), "transformers is not installed")
    def test_hugging_face(self) -> None:
        for entry, kind, text in HUGGING_FACE:
            with self.subTest(entry=entry):
                self.provoke(entry, kind, text)

    @unittest.skipUnless(harness.has("transformers"), "transformers is not installed")
    def test_a_tracker_that_is_not_called_is_said(self) -> None:
        with contextlib.redirect_stderr(io.StringIO()) as said:
            harness.program_here(entry="hugging:tracked", spec={"steps": 9, "gradient_clip_norm": 1.0})
        self.assertIn("the Trainer's callback Tracker is not called here", said.getvalue())

    @unittest.skipUnless(harness.has("lightning"), "lightning is not installed")
    def test_lightning(self) -> None:
        for entry, kind, text in LIGHTNING:
            with self.subTest(entry=entry):
                self.provoke(entry, kind, text)

    def test_a_loss_that_is_not_finite_is_said_at_its_step(self) -> None:
        worker = Worker()
        try:
            worker.build(entry="refused:NotFinite")
            with self.assertRaises(Failed) as caught:
                worker.compute(2, 5)
            self.assertEqual(("nonfinite", "the loss of step 5, rank 2 is nan"), (caught.exception.kind, caught.exception.what))
        finally:
            worker.close()

    def test_what_an_update_may_not_do(self) -> None:
        for entry, text in (
            ("ReplacesState", "on_step() replaced the memory of the state `mean`"),
            ("RemembersInOnStep", "on_step() changed `RemembersInOnStep.best`"),
            ("Unfreezes", "`requires_grad` of the parameter `0.weight` was changed"),
        ):
            worker = Worker()
            try:
                worker.build(entry=f"refused:{entry}")
                with self.assertRaises(Failed) as caught:
                    worker.apply(worker.compute(0, 0)[0], 0, 1.0)
                self.assertIn(text, caught.exception.what)
            finally:
                worker.close()

    def test_a_python_without_torch(self) -> None:
        code = "import sys; sys.modules['torch'] = None; from ebb.worker import Server; Server().answer(b'B', b'{}')"
        run = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": harness.PACKAGE}, capture_output=True, text=True, check=False)
        self.assertIn(f"Refused: the Python `{sys.executable}` cannot import torch", run.stderr)

    def test_a_traceback_begins_in_the_users_code(self) -> None:
        worker = Worker()
        try:
            with self.assertRaises(Failed) as caught:
                worker.build(entry="refused:Raises")
            lines = caught.exception.traceback.splitlines()
            self.assertEqual("Traceback (most recent call last):", lines[0])
            self.assertIn("refused.py", lines[1])
            self.assertEqual("NameError: name 'undefined_name' is not defined", lines[-1])
        finally:
            worker.close()

    def test_epochs_of_another_dataset(self) -> None:
        worker = Worker()
        try:
            sample = {"kind": "classified", "shape": [3, 8, 8], "classes": 5}
            message = {"entry": "refused:OtherRows", "sample": sample, "batch_bytes": 4 * (8 + 192 * 4), "rows": 64}
            with self.assertRaises(Failed) as caught:
                worker.build(spec={"epochs": 2}, **message)
            self.assertIn("counts the 64 of its `dataset:`; say the length as `steps:`", caught.exception.what)
            worker.build(spec={"steps": 2}, **message)
        finally:
            worker.close()

    def test_an_evaluation_that_leaves_something(self) -> None:
        sample = {"kind": "classified", "shape": [3, 8, 8], "classes": 5}
        for entry, name in (("WritesInEvaluate", "state largest"), ("CountsInEvaluate", "CountsInEvaluate.evaluations")):
            worker = Worker()
            try:
                message = {"entry": f"refused:{entry}", "sample": sample, "batch_bytes": 4 * (8 + 192 * 4), "rows": 64}
                with self.assertRaises(Failed) as caught:
                    worker.build(spec={"steps": 2, "evaluation": {"dataset": "held-out"}}, **message)
                self.assertIn(f"`{name}` changed in an evaluation", caught.exception.what)
            finally:
                worker.close()

    def test_an_evaluation_that_cannot_be_shown(self) -> None:
        for entry, text in (
            ("Fine", "`evaluation:` names no `dataset:`, and the program has no `held_out(self)`"),
            ("CollectiveInEvaluate", "evaluate() calls torch.distributed, and executors come and go"),
            ("EvaluatesText", "evaluate() returned a str as `loss`"),
            ("EvaluatesMuch", "evaluate() returned 17 names; 16 at most"),
        ):
            worker = Worker()
            try:
                with self.assertRaises(Failed) as caught:
                    worker.build(entry=f"refused:{entry}", spec={"steps": 2, "evaluation": {"every_steps": 2}})
                self.assertIn(text, caught.exception.what)
            finally:
                worker.close()

    def test_a_model_file_that_does_not_fit(self) -> None:
        worker = Worker()
        try:
            with self.assertRaises(Failed) as caught:
                worker.build(entry="refused:Fine", initial=__file__)
            self.assertIn("is no safetensors file", caught.exception.what)
        finally:
            worker.close()


if __name__ == "__main__":
    unittest.main()
