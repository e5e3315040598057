"""The pure parts, each against its definition."""

from __future__ import annotations

import collections
import contextlib
import http.server
import io
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import unittest
import unittest.mock

import harness
import torch

import ebb
from ebb import environment, initial, libm, numerics, python_state, run, sampler, schedule, seeds, tensors, tree
from ebb.build import steps_total
from ebb.layout import Layout, gradient_slots, is_dense
from ebb.loader import ReadAhead, Turn
from ebb.refuse import Refused, UserError, describe, user_code


ORDER = [1, 6, 2, 3, 4, 5, 7, 0]  # of eight rows with seed 7: changing it changes models


class Blame(unittest.TestCase):
    def test_a_closed_file_says_what_is_open_where_jobs_are_kept_from_files(self) -> None:
        def said(error: OSError) -> str:
            with self.assertRaises(UserError) as caught, user_code("model()"):
                raise error
            return str(caught.exception)

        closed = PermissionError(13, "Permission denied", "/tmp/out")
        self.assertTrue(said(closed).endswith("Permission denied: '/tmp/out'"), "at home it is the code's own affair")
        with unittest.mock.patch.dict(os.environ, EBB_TORCH_LIFE="3"):
            self.assertIn("'/tmp/out' (a job's code may write to its working directory, HOME and TMPDIR", said(closed))
            self.assertTrue(said(PermissionError(13, "Permission denied")).endswith("Permission denied"), "of no file")
        self.assertTrue(said(FileNotFoundError(2, "No such file", "/absent")).endswith("'/absent'"))

    def test_what_fails_on_a_device_is_told_from_what_the_code_does_wrong(self) -> None:
        texts = {
            "CUDA error: uncorrectable ECC error encountered": "device",
            "CUDA error: CUDA-capable device(s) is/are busy or unavailable\nCUDA kernel errors might be reported later": "device",
            "CUDA error: unknown error": "device",
            "No CUDA GPUs are available": "device",
            "CUDA error: device-side assert triggered": "user",
            "CUDA error: an illegal memory access was encountered": "user",
            "CUDA out of memory. Tried to allocate 20.00 MiB": "memory",
        }
        for text, kind in texts.items():
            with self.assertRaises(Exception) as caught, user_code("loss()"):
                raise RuntimeError(text)
            self.assertEqual(kind, describe(caught.exception)["kind"], text)

    @unittest.skipIf(torch.version.cuda, "this PyTorch has CUDA")
    def test_a_pytorch_without_cuda_is_refused_by_name(self) -> None:
        with self.assertRaisesRegex(Refused, "needs a PyTorch that is built with CUDA"):
            numerics.configure(1, "cuda")


class Tree(unittest.TestCase):
    def test_splits_at_the_largest_power_of_two_below(self) -> None:
        self.assertEqual([1, 2, 2, 4, 4, 4, 4, 8], [tree.split(count) for count in range(2, 10)])
        joined = tree.tree(0, 7, str, lambda left, right: f"({left}{right})")
        self.assertEqual("(((01)(23))((45)6))", joined)

    def test_norm_is_that_of_the_definition(self) -> None:
        for length in (0, 1, 15, 16, 4096, 4097, 13_000):
            values = torch.randn(length, generator=torch.Generator().manual_seed(length)) * 3
            squares = []
            for start in range(0, length, tree.BLOCK_ELEMENTS):
                lanes = [0.0] * tree.LANES
                for index, value in enumerate(values[start : start + tree.BLOCK_ELEMENTS].tolist()):
                    lanes[index % tree.LANES] += value * value
                squares.append(tree.sum_of(lanes))
            self.assertEqual(math.sqrt(tree.sum_of(squares)), tree.norm(values))

    def test_no_weight_gives_zeros_and_clipping_keeps_the_bound(self) -> None:
        gradient = torch.ones(100)
        self.assertEqual(10.0, tree.clip(gradient, 5.0))
        self.assertEqual(0.5, float(gradient[0]))
        tree.divide(gradient, 0.0)
        self.assertEqual(0, int(gradient.count_nonzero()))


class Schedule(unittest.TestCase):
    def factors(self, steps: int, **named: object) -> list[float]:
        return [schedule.factor(named, step, steps) for step in range(steps)]

    def test_tables(self) -> None:
        for expected, found in (
            ([0.5, 1, 1, 1], self.factors(4, warmup_steps=2)),
            ([1, 1, 1, 0.1, 0.1, 0.01], self.factors(6, kind="step", every_steps=2, factor=0.1, warmup_steps=1)),
            ([1, 0.6, 0.2], self.factors(3, kind="cosine", floor=0.2)),
            ([0.5, 1, 1, 0.5, 0], self.factors(5, kind="linear", warmup_steps=2)),
            ([1], self.factors(1, kind="cosine")),
        ):
            self.assertEqual(len(expected), len(found))
            for one, other in zip(expected, found):
                self.assertAlmostEqual(one, other, 12)

    def test_the_bits_are_the_services_where_the_platforms_differ(self) -> None:
        # Values of the Rust crate libm 0.2.16; for each of them a common C library gives another last bit.
        for x, expected in (
            ("0x1.651a956d390bep-4", "0x1.fe0e2d99a3d73p-1"), ("0x1.0685034c2466ep-3", "0x1.fbcca7203c311p-1"),
            ("0x1.5bc62b957f483p-3", "0x1.f8a2be1e04ef1p-1"), ("0x1.921fb54442d18p+1", "-0x1.0000000000000p+0"),
        ):  # fmt: skip
            self.assertEqual(expected, libm.cos(float.fromhex(x)).hex())
        for x, exponent, expected in (
            ("0x1.8667febe76650p-3", 19, "0x1.7b765f3b7fdc4p-46"), ("0x1.95c28933c1a5fp-1", 34, "0x1.81fc7350e2006p-12"),
            ("0x1.a91827ca60c1ap-1", 39, "0x1.72a7a504540ccp-11"), ("0x1.ac6bc5936d960p-2", 8, "0x1.ec319ca2fba12p-11"),
        ):  # fmt: skip
            self.assertEqual(expected, libm.pow_whole(float.fromhex(x), exponent).hex())
        self.assertEqual(
            [1.0, 0.0, 1.0, 0.0], [libm.pow_whole(0.0, 0), libm.pow_whole(0.0, 3), libm.pow_whole(1.0, 9), libm.pow_whole(0.5, 9_999)]
        )

    def test_lengths(self) -> None:
        self.assertEqual(7, steps_total({"steps": 7}, None))
        self.assertEqual(30, steps_total({"length": {"epochs": 3}}, 10))
        self.assertIsNone(steps_total({"epochs": 3}, None))


class Sampler(unittest.TestCase):
    @unittest.skipUnless(harness.has("numpy"), "numpy is not installed")
    def test_numpy_gives_the_definition(self) -> None:
        for rows in (1, 2, 1000):
            base = seeds.key(5, "order", rows)
            self.assertEqual(sampler.order_in_python(rows, base), sampler.order_by_numpy(rows, base))

    def test_every_row_once_an_epoch_whatever_the_hosting(self) -> None:
        plan = sampler.Sampler(103, 4, 5, 1, shuffle=True, drop_tail=False)
        self.assertEqual(6, plan.steps_per_epoch)
        orders = []
        for epoch in range(2):
            rows = [row for step in range(6) for rank in range(4) for row in plan.rows_of(epoch * 6 + step, rank)[1]]
            self.assertEqual(list(range(103)), sorted(rows))
            orders.append(rows)
        self.assertNotEqual(*orders)
        self.assertEqual((0, []), plan.rows_of(5, 1))
        self.assertEqual((0, 3), (plan.rows_of(5, 0)[0], len(plan.rows_of(5, 0)[1])))

    def test_without_shuffling_and_tail(self) -> None:
        plan = sampler.Sampler(103, 4, 5, 1, shuffle=False, drop_tail=True)
        self.assertEqual((5, (1, [10, 11, 12, 13, 14])), (plan.steps_per_epoch, plan.rows_of(5, 2)))

    def test_the_order_is_the_documented_one(self) -> None:
        self.assertEqual(ORDER, sampler.order_in_python(8, seeds.key(7, "order", 0)))


class PythonState(unittest.TestCase):
    def test_comes_back_as_it_was(self) -> None:
        value = {"a": (1, 2.5, [True, None]), "n": {3: "x"}, "m": collections.Counter({2: 1}), "inf": math.inf, "t": torch.tensor(0.1)}
        memory = memoryview(bytearray(8192))
        python_state.write(python_state.to_bytes(python_state.encode(value, "it")), memory)
        found = python_state.decode(python_state.read(memory))
        self.assertEqual({**value, "t": 0}, {**found, "t": 0})
        self.assertEqual(collections.Counter, type(found["m"]))
        self.assertTrue(torch.equal(value["t"], found["t"]))

    def test_what_is_not_plain_or_grows_is_refused(self) -> None:
        with self.assertRaisesRegex(Refused, r"it\.a\[0\] is a set"):
            python_state.encode({"a": [{1}]}, "it")
        with self.assertRaisesRegex(Refused, "grew to 5000 bytes"):
            python_state.write(b"x" * 5000, memoryview(bytearray(4096)))
        self.assertEqual((4096, 8000), (python_state.capacity(b"x"), python_state.capacity(b"x" * 2000)))


class Places(unittest.TestCase):
    def test_tensors_keep_type_and_strides_at_aligned_places(self) -> None:
        layout, flat = Layout(), torch.zeros(4096, dtype=torch.uint8)
        given = [
            torch.randn(3, 5).t(),
            torch.ones(7, dtype=torch.bool),
            torch.tensor(3, dtype=torch.int64),
            torch.randn(2, 3, 4, 4).bfloat16().to(memory_format=torch.channels_last),
            torch.empty(0, 3),
        ]
        slots = [layout.place(str(index), tensor) for index, tensor in enumerate(given)]
        self.assertEqual([0, 16, 32, 48, 96], [slot.word for slot in slots])
        self.assertEqual(96, layout.words)
        for slot, tensor in zip(slots, given):
            slot.view(flat).copy_(tensor)
        for slot, tensor in zip(slots, given):
            self.assertTrue(torch.equal(slot.view(flat), tensor))
            self.assertEqual(tensor.stride(), slot.view(flat).stride())
        self.assertEqual(([0, 16, 32, 48, 144], 144), (lambda s, w: ([slot.word for slot in s], w))(*gradient_slots(slots)))

    def test_dense(self) -> None:
        self.assertTrue(is_dense((2, 3, 1), (1, 2, 99)))
        self.assertFalse(is_dense((2, 3), (3, 0)))
        self.assertFalse(is_dense((2, 3), (6, 2)))


class Loader(unittest.TestCase):
    def test_what_is_expected_is_read_ahead_and_any_other_begins_anew(self) -> None:
        ahead, begun = ReadAhead(who, {"num_workers": 1}), []
        begin = ahead._begin
        ahead._begin = lambda turns, step, place: (begun.append((turns, step, place)), begin(turns, step, place))
        asked = [((rank,), step) for step in (0, 1, 2) for rank in (0, 1)] + [((0,), 7), ((1,), 7), ((1,), 8), ((5,), 8), ((5,), 9)]
        ahead.expect([(0,), (1,)], 0)
        for turn, step in asked:
            key, process = ahead.fetch(turn, step)
            self.assertEqual((turn, step), key)
            self.assertNotEqual(os.getpid(), process)
        self.assertEqual([([(0,), (1,)], 0, 0), ([(0,), (1,)], 7, 0), ([(0,), (1,)], 8, 1), ([(5,)], 8, 0)], begun)
        ahead.expect([(5,)], 10)
        self.assertEqual(4, len(begun), "it is what follows anyway")
        ahead.expect([(5, 6)], 10)
        self.assertEqual(([(5, 6)], 10, 0), begun[-1])

    def test_what_fails_in_another_process_is_told_as_it_is_here(self) -> None:
        ahead = ReadAhead(fails, {"num_workers": 1})
        for error, text in ((Refused, "no such row"), (UserError, "KeyError in the dataset: 'row'")):
            with self.assertRaisesRegex(error, text) as caught:
                ahead.fetch((0,) if error is Refused else (1,), 0)
        self.assertIn("fails", caught.exception.lines)


def who(turn: Turn, step: int) -> tuple[tuple[Turn, int], int]:
    return (turn, step), os.getpid()


def fails(turn: Turn, _step: int) -> None:
    if turn == (0,):
        raise Refused("no such row")
    with user_code("the dataset"):
        raise KeyError("row")


class Begins(unittest.TestCase):
    """What a training begins with: names, shapes, wrappers, folders."""

    def setUp(self) -> None:
        self.folder = self.enterContext(tempfile.TemporaryDirectory())

    def saved(self, name: str, found: dict[str, torch.Tensor]) -> str:
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            tensors.write(file, found, [])
        return path

    def test_what_does_not_fit_is_named_with_its_shape(self) -> None:
        path = self.saved("a.safetensors", {"weight": torch.ones(3, 2), "head.bias": torch.ones(4)})
        with self.assertRaises(Refused) as caught:
            ebb.load(path, torch.nn.Linear(2, 2))
        for text in ("it lacks `bias` [2]", "the model has no `head.bias` [4]", "`weight` [3, 2], not [2, 2]", "strict: false"):
            self.assertIn(text, str(caught.exception))
        with self.assertRaisesRegex(Refused, "nothing in .* fits the model"):
            ebb.load(path, torch.nn.Linear(2, 2), strict=False)
        model = ebb.load(path, torch.nn.Linear(2, 3), strict=False)
        self.assertTrue(bool((model.weight == 1).all()) and not bool((model.bias == 1).all()))

    def test_a_wrapped_model_finds_its_names(self) -> None:
        class Wrapped(torch.nn.Module):
            base_model_prefix = "body"

            def __init__(self) -> None:
                super().__init__()
                self.body = torch.nn.Linear(2, 2)

        for names in (("weight", "bias"), ("body.weight", "body.bias")):
            path = self.saved("b.safetensors", {names[0]: torch.ones(2, 2), names[1]: torch.ones(2)})
            self.assertTrue(bool((ebb.load(path, Wrapped()).body.weight == 1).all()))

    @unittest.skipUnless(harness.has("peft"), "peft is not installed")
    def test_an_adapted_model_takes_the_plain_ones_weights(self) -> None:
        import peft

        path = self.saved("c.safetensors", {"0.weight": torch.ones(4, 4), "0.bias": torch.ones(4)})
        adapted = peft.get_peft_model(torch.nn.Sequential(torch.nn.Linear(4, 4)), peft.LoraConfig(target_modules=["0"]))
        with self.assertRaisesRegex(Refused, "it lacks `base_model.model.0.lora_A.default.weight`"):
            ebb.load(path, adapted)
        ebb.load(path, adapted, strict=False)
        self.assertTrue(bool((adapted.base_model.model[0].base_layer.weight == 1).all()))

    def test_folders(self) -> None:
        whole = self.saved("whole/model.safetensors", {"weight": torch.ones(2)})
        self.assertEqual(["weight"], list(ebb.load(os.path.dirname(whole))))
        for name, tensor in (("weight", torch.ones(2)), ("bias", torch.zeros(1))):
            self.saved(f"parts/model-{name}.safetensors", {name: tensor})
        parts = os.path.join(self.folder, "parts")
        with self.assertRaisesRegex(Refused, "has no model.safetensors and 2 others that end so"):
            ebb.load(parts)
        with open(os.path.join(parts, "model.safetensors.index.json"), "w", encoding="utf-8") as file:
            json.dump({"weight_map": {"weight": "model-weight.safetensors", "bias": "../parts/model-bias.safetensors"}}, file)
        self.assertEqual({"weight", "bias"}, set(ebb.load(parts)))
        with self.assertRaisesRegex(Refused, "cannot be read: No such file"):
            ebb.load(os.path.join(self.folder, "nowhere.safetensors"))
        with self.assertRaisesRegex(Refused, "job-abc is no file here, and Ebb at http://127.0.0.1:9 cannot be asked"):
            os.environ["EBB_URL"] = "http://127.0.0.1:9"
            self.addCleanup(os.environ.pop, "EBB_URL")
            ebb.load("job-abc")


    def test_a_state_that_is_no_tensor_stays_as_the_model_made_it(self) -> None:
        class Remembers(torch.nn.Linear):
            def get_extra_state(self):
                return {"seen": 3}

            def set_extra_state(self, state):
                raise AssertionError("it was not saved")

        path = self.saved("e.safetensors", {"weight": torch.ones(2, 2), "bias": torch.ones(2)})
        self.assertTrue(bool((ebb.load(path, Remembers(2, 2)).weight == 1).all()))

    def test_a_damaged_file_is_refused_by_what_is_wrong(self) -> None:
        good = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
        for header, text in (
            ([], "its header is a list"), ({"w": 3}, "has the type None"), ({"w": {**good, "dtype": ["F32"]}}, r"has the type \['F32'\]"),
            ({"w": {**good, "shape": [-2]}}, "are no sizes"), ({"w": {**good, "shape": None}}, "are no sizes"),
            ({"w": {**good, "data_offsets": [0]}}, "are no sizes"), ({"w": {**good, "shape": [3]}}, "needs 12 bytes"),
            ({"w": {**good, "data_offsets": [8, 0]}}, "needs 8 bytes"), ({"w": {**good, "data_offsets": [8, 16]}}, "was not copied whole"),
        ):  # fmt: skip
            path, said = os.path.join(self.folder, "bad.safetensors"), json.dumps(header).encode()
            with open(path, "wb") as file:
                file.write(len(said).to_bytes(8, "little") + said + bytes(8))
            with self.subTest(header), self.assertRaisesRegex(Refused, text):
                ebb.load(path)

    def test_another_model_than_was_asked_for_is_refused(self) -> None:
        path = self.saved("f.safetensors", {"weight": torch.ones(2)})
        with open(path, "rb") as file:
            content = file.read()
        digest, wrong = tensors.digest_of(path), "0" * 64

        class Service(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                jobs = {"jobs": [{"id": f"job-{name}", "outcome": {"model_digest": name}} for name in (digest, wrong)]}
                self.send_response(200)
                self.end_headers()
                self.wfile.write(content if self.path.endswith("/model") else json.dumps(jobs).encode())

            def log_message(self, *_: object) -> None:
                pass

        service = http.server.HTTPServer(("127.0.0.1", 0), Service)
        threading.Thread(target=service.serve_forever).start()
        self.addCleanup(service.server_close)
        self.addCleanup(service.shutdown)
        os.environ["EBB_URL"] = f"http://127.0.0.1:{service.server_port}"
        self.addCleanup(os.environ.pop, "EBB_URL")
        self.assertEqual(["weight"], list(ebb.load(digest)))
        with self.assertRaisesRegex(Refused, f"has the digest {digest}; the model there is damaged"):
            ebb.load(wrong)

    def test_what_a_spec_names(self) -> None:
        path = self.saved("g.safetensors", {"weight": torch.ones(2)})
        job = "job-1"
        for value, expected in (
            ("g.safetensors", (path, True)), (job, (job, True)), ({"file": "g.safetensors", "strict": False}, (path, False)),
            ({"path": "/models/x"}, ("/models/x", True)), ({"digest": "0" * 64}, ("0" * 64, True)),
        ):  # fmt: skip
            self.assertEqual(expected, initial.named(value, self.folder))
        for value in ({"file": "a", "job": job}, {"strict": True}, 3, {"folder": "x"}, {"job": 3}):
            with self.subTest(value), self.assertRaisesRegex(Refused, "`from` is .*; it must be"):
                initial.named(value, self.folder)
        with self.assertRaisesRegex(Refused, "`from.strict` is 'no'"):
            initial.named({"job": job, "strict": "no"}, self.folder)

    def test_a_spec_says_what_a_training_begins_with_and_where_it_computes(self) -> None:
        self.saved("h.safetensors", {"weight": torch.ones(2)})
        spec = os.path.join(self.folder, "job.json")
        for given, said in (({"from": "h.safetensors"}, "it lacks `0.weight`"), ({"device": "abacus"}, "`device` is 'abacus'; it must be cpu or cuda")):
            with open(spec, "w", encoding="utf-8") as file:
                json.dump({"steps": 1, **given}, file)
            with self.subTest(said), contextlib.redirect_stderr(io.StringIO()) as errors:
                self.assertEqual(1, run.main(["vision:Job", "--code", harness.JOBS, "--spec", spec]))
                self.assertIn(said, errors.getvalue())


class Environments(unittest.TestCase):
    def test_the_remains_of_a_package_are_none(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for name, version in (("removed", None), ("Two_Words", "2.0")):
                os.mkdir(os.path.join(folder, f"{name}-1.dist-info"))
                if version:
                    with open(os.path.join(folder, f"{name}-1.dist-info", "METADATA"), "w", encoding="utf-8") as file:
                        file.write(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
            sys.path.insert(0, folder)
            self.addCleanup(sys.path.remove, folder)
            self.assertEqual("2.0", environment.found_here()["two-words"])
            self.assertEqual([], environment.missing(folder))


class Memory(unittest.TestCase):
    def test_a_mapped_place_keeps_no_descriptor(self) -> None:
        program = harness.program_here(entry="vision:Job")
        for number in range(1, 4):
            descriptor = os.memfd_create("place", os.MFD_CLOEXEC)
            os.ftruncate(descriptor, 4 * (program.gradient_elements + program.extra_elements))
            program.add_place(number, descriptor)
        links = [os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")]
        self.assertEqual(0, sum("memfd:place" in link for link in links))
        self.assertEqual([1, 2, 3], sorted(program.places))

    def test_held_out_rows_are_read_when_they_are_asked_for(self) -> None:
        program = harness.program_here(entry="vision:Validated", spec={"steps": 2, "evaluation": {"every_steps": 1}})
        self.assertEqual((True, None), (program.data.ahead is not None, program.parts.held_out.ahead))


class Ends(unittest.TestCase):
    def test_an_executor_that_goes_away_unheard_ends_its_child_in_silence(self) -> None:
        worker = harness.Worker()
        worker.socket.sendall(b"\1\0\0\0S")
        self.assertEqual(b"!", worker.socket.recv(5)[4:])  # the rest stays unread, which the child hears as a broken connection
        self.assertEqual(0, worker.close())


class Scripts(unittest.TestCase):
    def test_a_script_run_by_hand_trains_and_its_model_loads(self) -> None:
        variables = {**os.environ, "PYTHONPATH": harness.PACKAGE}
        done = subprocess.run([sys.executable, "script.py"], cwd=harness.JOBS, env=variables, capture_output=True, text=True, check=True)
        self.assertRegex(done.stdout, r"step 3/3 loss [0-9.]+\ndigest [0-9a-f]{64}\n$")

    def test_a_models_file(self) -> None:
        sys.path.insert(0, harness.JOBS)
        from vision import small_cnn

        program = harness.program_here(entry="vision:Job")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.safetensors")
            digest = run.write_model(program, path)
            self.assertEqual(digest, tensors.digest_of(path))
            model = ebb.load(path, small_cnn())
            self.assertTrue(torch.equal(model[0].weight, ebb.load(path)["0.weight"]))
            with self.assertRaisesRegex(Refused, "it lacks `weight` \\[2, 2\\], `bias` \\[2\\]; the model has no `0.weight`"):
                ebb.load(path, torch.nn.Linear(2, 2))


if __name__ == "__main__":
    unittest.main()
