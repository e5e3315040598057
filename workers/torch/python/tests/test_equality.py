"""The promise: the same bits for every hosting of the logical workers and by `ebb.run`; one worker's steps as a plain loop's."""

from __future__ import annotations

import itertools
import json
import os
import struct
import subprocess
import sys
import tempfile
import threading
import unittest
from typing import Any
from unittest import mock

import harness
import torch
from harness import JOBS, PACKAGE, Worker, here, moving, program_here, train

import ebb
from ebb import parts, run, seeds, tensors, tree, twin
from ebb.build import Settings

STEPS = 6
SPEC = {"steps": STEPS, "gradient_clip_norm": 1.0, "schedule": {"kind": "cosine", "warmup_steps": 2}}

sys.path.insert(0, JOBS)


class Means(unittest.TestCase):
    """Of a job's only logical worker a gradient comes divided by its weight: the bits of dividing it afterwards."""

    ENTRIES = (
        *(f"vision:{entry}" for entry in ("Job", "Everything", "Autocast", "HalfParameters", "ChannelsLast")),
        *(f"text:{entry}" for entry in ("Job", "Reentrant", "Routed", "Sparse")),
    )

    def test_they_are_quotients(self) -> None:
        for entry, few in itertools.product(self.ENTRIES, (True, False)):
            with self.subTest(entry, few=few), mock.patch.object(parts, "STRETCH_BYTES_MIN", 1 << 20 if few else 0):
                worker = Worker()
                try:
                    worker.build(entry=entry, batch_size=3)
                    elements = worker.info["gradient_elements"]
                    for step in range(2):
                        summed, weight, loss = worker.compute(0, step)
                        mean, *said = worker.compute(0, step, mean=True)
                        self.assertEqual([weight, loss], said)
                        self.assertNotEqual(1.0, weight)
                        tree.divide(summed[:elements], weight)
                        self.assertTrue(torch.equal(summed.view(torch.int32), mean.view(torch.int32)))
                finally:
                    worker.close()

    def test_what_weighs_nothing_is_zero(self) -> None:
        worker = Worker()
        try:
            worker.build(entry="vision:Weightless")
            self.assertGreater(worker.compute(0, 0)[0].abs().sum(), 0)
            mean, weight, _ = worker.compute(0, 0, mean=True)
            self.assertEqual((0.0, 0.0), (weight, float(mean[: worker.info["gradient_elements"]].abs().sum())))
        finally:
            worker.close()


class EveryHosting(unittest.TestCase):
    """One process, then three, then two, each built anew and given a snapshot, against one process all along."""

    def same(self, entry: str, **message: Any) -> None:
        message = {"spec": SPEC, **message, "entry": entry}
        sys.modules.pop(entry, None)  # a script declares its training when it is imported
        replica, digest, losses, program = here(STEPS, **message)
        sys.modules.pop(entry, None)
        moved_replica, moved_digest, moved_losses = train(moving, STEPS, **message)
        self.assertEqual(losses, moved_losses)
        self.assertTrue(torch.equal(replica, moved_replica), "the replicas differ")
        self.assertEqual(digest, moved_digest)
        self.assertGreater(len(set(losses)), STEPS - 2, "nothing was trained")

    def test_images(self) -> None:
        for entry in ("Job", "Everything", "Several", "Autocast", "HalfParameters", "ChannelsLast"):
            with self.subTest(entry):
                self.same(f"vision:{entry}")

    def test_a_gradient_of_a_gradient(self) -> None:
        self.same("vision:GradientPenalty")

    def test_compiled(self) -> None:
        """Models, also in place, and functions; each of another class than eager."""
        for entry in ("Compiled", "CompiledInPlace", "CompiledFunction"):
            with self.subTest(entry):
                self.same(f"compiles:{entry}")
        sys.modules.pop("compiles")  # a worker forked from here would find it imported
        for entry, execution in (("compiles:Compiled", "compiled"), ("compiles:CompiledInPlace", "compiled"), ("vision:Job", "eager")):
            worker = Worker()
            try:
                self.assertEqual(execution, worker.build(entry=entry, check=False)["class"]["execution"], entry)
            finally:
                worker.close()

    def test_text(self) -> None:
        for entry in ("Job", "Reentrant", "Lora", "Routed", "Sparse", "Recurrent"):
            with self.subTest(entry):
                self.same(f"text:{entry}")

    def test_rows_read_ahead_by_other_processes(self) -> None:
        replica, digest, losses = train(
            lambda step: [[0, 1], [2, 3]] if step < 4 else harness.ONE, STEPS, entry="vision:ReadAhead", spec=SPEC
        )
        expected, expected_digest, expected_losses, _ = here(STEPS, entry="vision:Job", spec=SPEC)
        self.assertEqual((expected_digest, expected_losses), (digest, losses))
        self.assertTrue(torch.equal(expected, replica))

    def test_two_threads_and_rows_of_other_processes(self) -> None:
        found = [train(moving, STEPS, entry=f"vision:{entry}", spec=SPEC, threads=2) for entry in ("Job", "ReadAhead")]
        self.assertEqual(found[0][1:], found[1][1:])
        self.assertTrue(torch.equal(found[0][0], found[1][0]))

    def test_rows_are_made_alike_wherever_they_are(self) -> None:
        for entry in ("Plain", "PlainAhead", "PlainSpawned"):
            with self.subTest(entry):
                worker = Worker()
                try:
                    worker.build(entry=f"vision:{entry}", threads=2, check=False)
                    found = worker.compute(1, 0)
                    self.assertEqual((4.0, found[2]), (found[1], worker.compute(1, 0)[2]))
                finally:
                    worker.close()

    def test_each_buffer_has_a_storage_of_its_own(self) -> None:
        """A compiler takes buffers that a forward changes for one another where they share a storage."""
        program = program_here(entry="vision:Job", spec=SPEC)
        storages = [buffer.untyped_storage()._cdata for buffer in program.model.buffers()]
        self.assertEqual((3, 3), (len(storages), len(set(storages))))

    def test_an_evaluation_of_its_own_rows(self) -> None:
        message = {"entry": "vision:Validated", "spec": {**SPEC, "evaluation": {"every_steps": 2}}}
        worker = Worker()
        try:
            # 11 rows of 4 workers with 4 rows each are one part, in which the last worker has none.
            self.assertEqual(1, worker.build(**message)["held_out_parts"])
            before = worker.snapshot()
            found = [worker.evaluate(rank, 0) for rank in range(4)]
            self.assertEqual([4, 4, 3, 0], [part["count"] for part in found])
            self.assertEqual([["margin", "worst"]] * 3 + [[]], [sorted(part["sums"]) for part in found])
            self.assertEqual(found[1], worker.evaluate(1, 0), "there was chance in an evaluation")
            self.assertTrue(torch.equal(before, worker.snapshot()), "an evaluation changed the replica")
        finally:
            worker.close()

    def test_a_replica_apart_from_the_segment(self) -> None:
        for entry in ("vision:Everything", "text:Recurrent", "vision:HalfParameters"):
            with self.subTest(entry):
                replica, digest, _ = train(moving, STEPS, entry=entry, spec=SPEC, apart=True)
                expected, expected_digest, _, _ = here(STEPS, entry=entry, spec=SPEC)
                self.assertEqual(expected_digest, digest)
                self.assertTrue(torch.equal(expected, replica))

    def test_a_script(self) -> None:
        self.same("script")

    @unittest.skipUnless(harness.has("transformers"), "transformers is not installed")
    def test_hugging_face(self) -> None:
        for entry in ("causal", "smoothed", "classifier", "Mine", "translator"):
            with self.subTest(entry):
                self.same(f"hugging:{entry}")

    @unittest.skipUnless(harness.has("peft") and harness.has("transformers"), "peft is not installed")
    def test_low_rank_adapters(self) -> None:
        self.same("hugging:lora")

    @unittest.skipUnless(harness.has("lightning"), "lightning is not installed")
    def test_lightning(self) -> None:
        for entry in ("Module", "with_rows"):
            with self.subTest(entry):
                self.same(f"bolts:{entry}", batch_size=2)  # 40 rows, 8 a step: the scheduler of epochs moves after step 5

    def test_an_ebb_dataset(self) -> None:
        sample = {"kind": "classified", "shape": [3, 8, 8], "classes": 5}
        message = {"entry": "vision:Native", "sample": sample, "batch_bytes": 4 * (8 + 192 * 4), "rows": 64, "spec": SPEC}
        first = train(lambda _: harness.ONE, STEPS, feed_images, **message)
        second = train(moving, STEPS, feed_images, **message)
        self.assertTrue(torch.equal(first[0], second[0]))
        self.assertEqual(first[1:], second[1:])

    def test_a_batch_is_the_same_wherever_it_lies(self) -> None:
        """The executor writes the next one beside the one that is read."""
        sample = {"kind": "classified", "shape": [3, 8, 8], "classes": 5}
        size = 4 * (8 + 192 * 4)
        worker = Worker()
        try:
            worker.build(entry="vision:Native", sample=sample, batch_bytes=size, batch_places=3, rows=64, check=False)
            rows = feed_images(worker, 0, 0)
            worker.batch[size : 3 * size] = worker.batch[:size].repeat(2)
            first = worker.compute(0, 0, rows)
            worker.batch[:size] = 0
            for place in (1, 2):
                again = worker.compute(0, 0, rows, place * size)
                self.assertTrue(torch.equal(first[0], again[0]))
                self.assertEqual(first[1:], again[1:])
        finally:
            worker.close()

    def test_the_mean_stays_as_it_is(self) -> None:
        """The executor may give it to another one that has to catch up."""
        import vision

        for name in vision.OPTIMIZERS:
            with self.subTest(name):
                worker = Worker()
                try:
                    worker.build(entry="vision:Optimizers", parameters={"optimizer": name}, workers=1, check=False)
                    for step in range(2):
                        mean, _, _ = worker.compute(0, step)
                        worker.apply(mean, step, 1.0)
                        self.assertTrue(torch.equal(mean, worker.gradient_view()), "an update changed the mean")
                finally:
                    worker.close()

    def test_an_evaluated_average_stays_as_it_is(self) -> None:
        sample = {"kind": "classified", "shape": [3, 8, 8], "classes": 5}
        worker = Worker()
        try:
            message = {"entry": "vision:EvaluatesAverage", "sample": sample, "batch_bytes": 4 * (8 + 192 * 4), "rows": 64}
            worker.build(spec={**SPEC, "evaluation": {"dataset": "held-out"}}, **message)
            feed_images(worker, 0, 0)
            before, first = worker.snapshot(), worker.evaluate(0, 0, 4)
            self.assertTrue(torch.equal(before, worker.snapshot()), "an evaluation changed the replica")
            self.assertEqual(first, worker.evaluate(0, 5, 4), "there was chance in an evaluation")
        finally:
            worker.close()

    def test_tokens_of_an_ebb_dataset(self) -> None:
        sample = {"kind": "tokens", "length": 13, "vocabulary": 31}
        message = {"entry": "text:Native", "sample": sample, "batch_bytes": 4 * 13 * 8, "rows": 64, "spec": SPEC}
        first = train(lambda _: harness.ONE, STEPS, feed_tokens, **message)
        second = train(moving, STEPS, feed_tokens, **message)
        self.assertEqual(first[1:], second[1:])


def feed_images(worker: Worker, rank: int, step: int) -> int:
    rows = 0 if (rank, step) == (2, 1) else 4 - rank % 2  # a rank without rows, and ranks of different sizes
    generator = torch.Generator().manual_seed(1000 * step + rank)
    worker.batch[: rows * 8].view(torch.int64).copy_(torch.randint(0, 5, (rows,), generator=generator))
    worker.batch[rows * 8 : rows * (8 + 768)].view(torch.float32).copy_(torch.randn(rows * 192, generator=generator))
    return rows


def feed_tokens(worker: Worker, rank: int, step: int) -> int:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    worker.batch[: 4 * 13 * 8].view(torch.int64).copy_(torch.randint(0, 31, (52,), generator=generator))
    return 4


class PlainLoop(unittest.TestCase):
    """One logical worker's steps are those of a loop anybody would write; and state goes from program to program at every step."""

    def compare(self, entry: str, **parameters: Any) -> None:
        message = {"entry": entry, "parameters": parameters, "workers": 1, "spec": {"steps": 9}}
        program, first, second, source = (program_here(**message) for _ in range(4))
        job = program_here(**message).job
        model = job.model()
        model.load_state_dict(program.export())
        optimizer = job.optimizer(model)
        scheduler = job.scheduler(optimizer)
        for step in range(9):
            run.train_step(program, step, 9)
            run.train_step(first, step, 9)
            first.snapshot()
            second.replica_segment.bytes.copy_(first.replica_segment.bytes)
            second.hold()
            first, second = second, first
            batch, _ = source.data.batch(0, step)
            seeds.set_all(seeds.key(3, "gradient", 0, step))
            model.zero_grad()
            loss, weight = job.loss(model, batch)
            (loss / weight).backward()
            for one in optimizer if isinstance(optimizer, list) else [optimizer]:
                one.step()
            if scheduler is not None:
                scheduler.step()
        self.assertTrue(torch.equal(program.host_replica, first.host_replica), "moving from program to program changed the replica")
        for name, value in program.export().items():
            self.assertTrue(torch.equal(value, model.state_dict()[name]), f"{name} is not the plain loop's")

    def test_optimizers(self) -> None:
        import vision

        for name in vision.OPTIMIZERS:
            with self.subTest(name):
                self.compare("vision:Optimizers", optimizer=name)

    def test_schedulers(self) -> None:
        import vision

        for name in vision.SCHEDULERS:
            with self.subTest(name):
                self.compare("vision:Schedulers", optimizer="sgd", scheduler=name)


class OtherTrainers(unittest.TestCase):
    """One logical worker's training is what the framework's own Trainer makes of the same rows, where what both divide by changes no bits."""

    def setUp(self) -> None:
        self.steps = 8

    def ours(self, entry: str) -> tuple[Any, dict[str, torch.Tensor]]:
        spec = {"steps": self.steps, "shuffle": "none"}
        program = program_here(entry=entry, workers=1, spec=spec)
        begun = {name: value.clone() for name, value in program.export().items()}
        for step in range(self.steps):
            run.train_step(program, step, self.steps)
        return program, begun

    def same(self, program: Any, model: torch.nn.Module) -> None:
        theirs = model.state_dict()
        for name, value in program.export().items():
            self.assertTrue(torch.equal(value, theirs[name]), f"{name} is not the Trainer's")

    @unittest.skipUnless(harness.has("transformers"), "transformers is not installed")
    def test_a_trainer_of_transformers(self) -> None:
        import hugging

        for name in ("plain_causal", "plain_classifier"):
            with self.subTest(name):
                program, begun = self.ours(f"hugging:{name}")
                folder = self.enterContext(tempfile.TemporaryDirectory())
                trainer = getattr(hugging, name)(
                    per_device_train_batch_size=4, max_steps=self.steps, train_sampling_strategy="sequential", save_strategy="no", disable_tqdm=True
                )
                trainer.args.output_dir = folder
                trainer.model.load_state_dict(begun)
                trainer.train()
                self.same(program, trainer.model)
                self.assertFalse(any(torch.equal(begun[key], value) for key, value in program.export().items() if "weight" in key and "attn" in key))

    @unittest.skipUnless(harness.has("lightning"), "lightning is not installed")
    def test_a_trainer_of_lightning(self) -> None:
        import bolts
        import lightning

        program, begun = self.ours("bolts:Plain")
        module = bolts.Plain()
        module.load_state_dict(begun)
        quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
        lightning.Trainer(accelerator="cpu", devices=1, max_steps=self.steps, use_distributed_sampler=False, **quiet).fit(module)
        self.same(program, module)
        self.assertFalse(torch.equal(begun["net.1.weight"], program.export()["net.1.weight"]))


class SecondProcess(unittest.TestCase):
    """What is asked of another process before a program is checked in this one."""

    def test_it_finds_the_same_in_the_opposite_order_forked_or_not(self) -> None:
        settings = Settings.parse({"code": JOBS, "entry": "vision:Everything", "seed": 3, "workers": 4, "batch_size": 4, "spec": SPEC})
        forked = twin.ask(settings)
        ended = threading.Event()
        other = threading.Thread(target=ended.wait)
        other.start()  # which a forked process would not have
        try:
            begun = twin.ask(settings)
        finally:
            ended.set()
            other.join()
        self.assertEqual(forked, begun)
        program = program_here(entry="vision:Everything", spec=SPEC)
        twin.compare(program, forked)
        self.assertEqual(forked, program.observed)
        self.assertEqual(["batches", "class", "gradients", "values"], sorted(forked))

    def test_a_class_of_another_process_is_named(self) -> None:
        settings = Settings.parse({"code": JOBS, "entry": "vision:Job", "seed": 3, "workers": 4, "batch_size": 4})
        other = twin.ask(settings)
        other["class"]["execution"] = "compiled"
        with self.assertRaisesRegex(ebb.Refused, "`execution` of the numeric class differs between two processes"):
            twin.compare(program_here(entry="vision:Job"), other)


class Protocol(unittest.TestCase):
    """A worker begun by its command, message by message."""

    def test_every_message(self) -> None:
        sample = {"kind": "classified", "shape": [3, 8, 8], "classes": 5}
        message = {"entry": "vision:Native", "sample": sample, "batch_bytes": 4 * (8 + 192 * 4), "rows": 64}
        worker, other = Worker(fresh=True), Worker()
        try:
            info = worker.build(**message)
            self.assertEqual(info["own_rows"], None)
            self.assertEqual(info["parameter_count"], sum(torch.Size(p["shape"]).numel() for p in info["parameters"]))
            self.assertTrue(all(p["word"] % 16 == 0 for p in info["parameters"]))
            self.assertEqual(info["class"], other.build(**message)["class"])
            self.assertEqual(64, len(info["class"]["gradient"]))
            start = worker.snapshot()
            self.assertTrue(torch.equal(start, other.snapshot()))

            empty, weight, loss = worker.compute(1, 0, 0)
            self.assertEqual((0.0, 0.0, 0), (weight, loss, int(empty.count_nonzero())))
            gradient, weight, _ = worker.compute(0, 0, feed_images(worker, 0, 0))
            self.assertEqual(4.0, weight)
            self.assertTrue(torch.equal(start, worker.snapshot()), "a gradient changed the replica")
            extra = gradient[info["gradient_elements"] :]
            self.assertEqual([1.0] * 8 + [0.0] * 8, extra[:16].tolist(), "touched bits")
            self.assertTrue(((extra >= 0) & (extra <= 65535) & (extra == extra.floor())).all())
            self.assertEqual(0, int(worker.compute(1, 0, feed_images(worker, 1, 0))[0][info["gradient_elements"] + 16 :].count_nonzero()))

            other.hold(start[: info["compute_words"] * 4], part=1)
            self.assertTrue(torch.equal(gradient, other.compute(0, 0, feed_images(other, 0, 0))[0]))
            with self.assertRaises(harness.Failed):
                other.apply(gradient, 0, 1.0)
            worker.apply(gradient, 0, 0.5)
            other.hold(worker.snapshot())
            feed_images(worker, 0, 0), feed_images(other, 0, 0)
            found = worker.evaluate(0, 0, 4)
            self.assertEqual(found, other.evaluate(0, 0, 4))
            self.assertEqual(4, found["count"])
            self.assertEqual(["correct", "largest", "loss"], sorted(found["sums"]))
            self.assertGreater(struct.unpack(">d", bytes.fromhex(found["sums"]["loss"]))[0], 0)

            content, digest = worker.model()
            self.assertEqual((content, digest), other.model())
            self.check_model(content, digest, message)
            with self.assertRaises(harness.Failed) as caught:
                worker.ask(b"?")
            self.assertEqual("internal", caught.exception.kind)
            worker.socket.sendall(b"\1\0\0\0X")
        finally:
            self.assertEqual([0, 0], [worker.close(), other.close()])

    def check_model(self, content: bytes, digest: str, message: dict[str, Any]) -> None:
        path = os.path.join(self.enterContext(__import__("tempfile").TemporaryDirectory()), "model.safetensors")
        with open(path, "wb") as file:
            file.write(content)
        self.assertEqual(digest, tensors.digest_of(path))
        if harness.has("safetensors"):
            from safetensors import safe_open

            with safe_open(path, "pt") as file:
                self.assertEqual({"step": "9"}, file.metadata())
                self.assertTrue(all(torch.equal(file.get_tensor(name), value) for name, value in ebb.load(path).items()))
        again = Worker()
        try:
            again.build(**message, initial=path)
            self.assertEqual(digest, again.model()[1])
        finally:
            again.close()

    def test_run_by_command(self) -> None:
        environment = {**os.environ, "PYTHONPATH": PACKAGE}
        command = [
            sys.executable,
            "-m",
            "ebb.run",
            "vision:Job",
            "--code",
            JOBS,
            "--workers",
            "4",
            "--steps",
            "3",
            "--batch-size",
            "4",
            "--seed",
            "3",
        ]
        printed = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
        digest = f"digest {here(3, entry='vision:Job', spec={'steps': 3})[1]}"
        self.assertIn(digest, printed)
        # A job file says all of that, and so does a job as the service shows it.
        job = {"workers": {"min": 1, "max": 4}, "steps": 3, "batch_size": 4, "seed": 3}
        shown = {"dry_run": True, "spec": {**job, "model": {"kind": "torch", "entry": "vision:Job", "code": "0" * 64}}}
        written = "engine: torch\nentry: vision:Job\ncode: " + JOBS + "\nworkers: {max: 4}\nsteps: 3\nbatch_size: 4\nseed: 3\n"
        specs = [("job.json", json.dumps(shown), ["--code", JOBS])] + [("job.yaml", written, [])] * harness.has("yaml")
        with tempfile.TemporaryDirectory() as folder:
            for name, text, more in specs:
                path = os.path.join(folder, name)
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
                command = [sys.executable, "-m", "ebb.run", "--spec", path, *more]
                printed = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
                self.assertIn(digest, printed, name)


if __name__ == "__main__":
    unittest.main()
