"""`determinism: none`: one gradient of all the logical workers that an executor hosts is the sum of theirs within rounding, whole or in batches of few
rows, and as repeatable as any."""

from __future__ import annotations

import itertools
import unittest
from typing import Any
from unittest import mock

import harness
import torch
from harness import Failed, Worker, here, program_here

from ebb import parts, run, tree
from ebb.collator import TRIALS, Rows
from ebb.data import cut
from ebb.refuse import Refused

NONE = {"steps": 6, "determinism": "none"}
#: Of four logical workers, on one executor, on two, and on three of uneven shares.
SHARES = ([(0, 1, 2, 3)], [(0, 1), (2, 3)], [(0, 3), (1,), (2,)], [(1, 2, 3), (0,)])
SAMPLE = {"kind": "classified", "shape": [3, 8, 8], "classes": 5}
ROW_BYTES = 8 + 192 * 4


def together(entry: str, **message: Any) -> Worker:
    """A worker that built a program for one gradient of up to four logical workers."""
    worker = Worker()
    worker.build(**{"entry": f"together:{entry}", "spec": NONE, "hosted_max": 4, **message})
    return worker


def step_of(worker: Worker, shares: list[tuple[int, ...]], step: int) -> tuple[torch.Tensor, float, float]:
    """The sum over executors of these shares, each computed by this one."""
    found = [worker.compute(share[0], step, others=share[1:]) for share in shares]
    return torch.stack([gradient for gradient, _, _ in found]).sum(0), sum(w for _, w, _ in found), sum(x for _, _, x in found)


class Sums(unittest.TestCase):
    def close(self, expected: torch.Tensor, found: torch.Tensor) -> None:
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))

    def test_any_shares_have_the_sum_of_the_logical_workers(self) -> None:
        for entry, few in itertools.product(("Weighted", "Few"), (True, False)):
            with self.subTest(entry, few=few), mock.patch.object(parts, "STRETCH_BYTES_MIN", 1 << 20 if few else 0):
                alone, worker = Worker(), together(entry)
                try:
                    alone.build(entry="together:Weighted")
                    for step in (0, 4):  # the last of an epoch has 11 rows, of three logical workers
                        expected, weight, loss = step_of(alone, [(rank,) for rank in range(4)], step)
                        elements = alone.info["gradient_elements"]
                        for shares in SHARES:
                            found, found_weight, found_loss = step_of(worker, shares, step)
                            self.assertEqual(weight, found_weight)
                            self.assertAlmostEqual(loss, found_loss, delta=1e-5 * loss)
                            self.close(expected[:elements], found[:elements])
                    self.assertGreater(weight, 11)
                finally:
                    alone.close()
                    worker.close()

    def test_a_training_of_uneven_shares_is_that_of_the_logical_workers_within_rounding(self) -> None:
        replica, _, losses, _ = here(6, entry="together:Weighted", spec={"steps": 6})
        worker = together("Few")
        try:
            for step in range(6):
                summed, weight, loss = step_of(worker, [SHARES[3], SHARES[0], SHARES[2]][step // 2], step)
                tree.divide(summed[: worker.info["gradient_elements"]], weight)
                worker.apply(summed, step, 1.0)
                self.assertAlmostEqual(losses[step], loss / weight, delta=1e-5 * losses[step])
            self.close(replica.view(torch.float32)[:3000], worker.snapshot().view(torch.float32)[:3000])
        finally:
            worker.close()

    def test_what_only_some_batches_reach_is_added_up_and_told(self) -> None:
        for few in (True, False):
            with mock.patch.object(parts, "STRETCH_BYTES_MIN", 1 << 20 if few else 0):
                alone, worker = Worker(), together("Parted")
                try:
                    alone.build(entry="together:Parted")
                    expected, _, _ = step_of(alone, [(rank,) for rank in range(4)], 1)
                    found, _, _ = step_of(worker, [(0, 1, 2, 3)], 1)
                    elements = alone.info["gradient_elements"]
                    self.close(expected[:elements], found[:elements])
                    self.assertEqual((expected[elements:] > 0).tolist(), (found[elements:] > 0).tolist(), "what was reached")
                    self.assertTrue(any(not worker.compute(rank, 1)[0][elements:].equal(found[elements:]) for rank in range(4)))
                finally:
                    alone.close()
                    worker.close()

    def test_stretches_are_final_only_in_the_last_batch(self) -> None:
        with mock.patch.object(parts, "STRETCH_BYTES_MIN", 0):
            for entry in ("Few", "Parted", "ChanceOfFew"):
                worker = together(entry)
                try:
                    expected = worker.compute(0, 1, others=(1, 2, 3))
                    *found, said = worker.compute_in_parts(0, 1, others=(1, 2, 3))
                    self.assertTrue(torch.equal(expected[0], found[0]))
                    self.assertEqual(expected[1:], tuple(found[1:]))
                    self.assertGreater(len(said), 0)
                finally:
                    worker.close()


class Repeats(unittest.TestCase):
    """The same executors at the same steps give the same bits."""

    def test_chance_is_of_the_first_logical_worker_and_the_step(self) -> None:
        for entry in ("Chance", "ChanceOfFew", "ReadAhead"):
            with self.subTest(entry):
                first, second = together(entry), together("ChanceOfFew" if entry == "ReadAhead" else entry, check=False)
                try:
                    first.expect([1, 2, 3], 2)
                    expected = [first.compute(1, step, others=(2, 3))[0] for step in (2, 3)]
                    for step, gradient in ((3, expected[1]), (2, expected[0])):
                        self.assertTrue(torch.equal(gradient, second.compute(1, step, others=(2, 3))[0]))
                    self.assertFalse(torch.equal(expected[0], second.compute(2, 2, others=(1, 3))[0]))
                finally:
                    first.close()
                    second.close()

    def test_running_statistics_are_those_of_who_hosts_logical_worker_0(self) -> None:
        for entry, batches in (("Chance", 1), ("ChanceOfFew", 4)):
            program = program_here(entry=f"together:{entry}", spec=NONE, hosted_max=4)
            program.gradient(1, 0, others=(3,))
            self.assertEqual(0, int(program.place.buffers.count_nonzero()))
            program.gradient(0, 0, others=(1, 2))
            program._collect_buffers()
            self.assertEqual(batches, int(program.model[2].num_batches_tracked))
            self.assertGreater(int(program.place.buffers.count_nonzero()), 0)

    def test_a_training_at_home_is_that_of_one_executor(self) -> None:
        message: dict[str, Any] = {"entry": "together:ChanceOfFew", "spec": NONE, "hosted_max": 4}
        for apart in (False, True):
            program = program_here(**message, apart=apart)
            losses = [run.train_step(program, step, 6) for step in range(6)]
            worker = together("ChanceOfFew")
            try:
                for step in range(6):
                    summed, weight, loss = worker.compute(0, step, others=(1, 2, 3))
                    tree.divide(summed[: worker.info["gradient_elements"]], weight)
                    worker.apply(summed, step, 1.0)
                    self.assertEqual(losses[step], loss / weight)
                program.snapshot()
                self.assertTrue(torch.equal(program.host_replica, worker.snapshot()))
            finally:
                worker.close()
        self.assertNotEqual(losses, here(6, entry="together:Chance", spec={"steps": 6})[2])


class OfEbb(unittest.TestCase):
    """Rows that the executor wrote into the segment: all of one gradient in one place."""

    ROWS, PLACES = 12, 3

    def program(self, entry: str, **message: Any) -> Any:
        size = self.ROWS * ROW_BYTES
        shared = {"sample": SAMPLE, "batch_bytes": size, "batch_places": self.PLACES, "rows": 900}
        return program_here(entry=f"together:{entry}", spec=NONE, hosted_max=3, workers=3, **shared, **message)

    def written(self, program: Any, step: int, rows: int = ROWS) -> Rows:
        start = step % self.PLACES * self.ROWS * ROW_BYTES
        generator = torch.Generator().manual_seed(step)
        labels, images = torch.randint(0, 5, (rows,), generator=generator), torch.rand(rows, 3, 8, 8, generator=generator)
        written = labels.numpy().tobytes() + images.numpy().tobytes()
        program.batch_segment.map[start : start + len(written)] = written
        return Rows(0, step, start, rows, step + 1)

    def gradients(self, program: Any, foreseen: bool) -> list[tuple[bytes, float, float]]:
        found, now = [], self.written(program, 0)
        for step in range(9):
            following = self.written(program, step + 1)
            number, after = (now.number, following) if foreseen else (0, None)
            weight, loss, _ = program.gradient(0, step, now.count, start=now.start, number=number, following=after, others=(1, 2))
            found.append((bytes(program.gradient_segment.map), weight, loss))
            now = following
        return found

    def test_collate_is_called_for_each_batch_ahead_or_not(self) -> None:
        program = self.program("Shared")
        expected = self.gradients(self.program("InTheStep"), False)
        self.assertEqual(expected, self.gradients(program, True))
        self.assertEqual(9 - TRIALS - 1, program.data.ahead.made)
        program.data.ahead._end()

    def test_batches_are_rows_in_their_order(self) -> None:
        program = self.program("Tensors")
        rows = self.written(program, 1, 11)
        found = program.data.batches((0, 1, 2), 1, rows.count, rows.start)
        self.assertEqual([3, 4, 4], [count for _, count in found])
        (images, labels), _ = program.data.tensors(11, rows.start)
        self.assertTrue(torch.equal(images, torch.cat([batch[0] for batch, _ in found])))
        self.assertTrue(torch.equal(labels, torch.cat([batch[1] for batch, _ in found])))
        self.assertEqual([], program.data.batches((1, 2), 1, 0))

    def test_a_gradient_apart_is_the_same(self) -> None:
        programs = [self.program("Tensors", apart=apart) for apart in (False, True)]
        one, other = (self.gradients(program, False) for program in programs)
        self.assertEqual([found[1:] for found in one], [found[1:] for found in other])
        self.assertEqual(one[-1][0], other[-1][0])


class Refusals(unittest.TestCase):
    def test_what_cannot_be_meant_is_named(self) -> None:
        for entry, message, said in (
            ("NoNumber", {}, "`micro_batch_rows` is 2.5; it must be a whole number from 1"),
            ("Few", {"hosted_max": None, "batch_size": 6}, "`micro_batch_rows` is 5, and is for `determinism: none`; here loss() is given the 6 rows"),
            ("OneSize", {}, "shape '[4, 192]' is invalid"),
        ):
            with self.subTest(entry), self.assertRaises(Failed) as caught:
                together(entry, **message)
            self.assertIn(said, caught.exception.what)
        together("Few", hosted_max=None, batch_size=5).close()

    def test_rows_are_cut_in_order(self) -> None:
        self.assertEqual([(0, 3), (3, 6), (6, 9)], cut(9, 4))
        self.assertEqual([(0, 2), (2, 5), (5, 8)], cut(8, 3))
        self.assertEqual([(0, 9)], cut(9, None))
        self.assertEqual([], cut(0, None) + cut(0, 3))


if __name__ == "__main__":
    unittest.main()
