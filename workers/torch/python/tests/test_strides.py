"""An update that takes several steps at once (`batch_range`): its gradient is the sum of theirs, its rates and Adam's averages are those of the native engine,
and what counts, counts steps."""

from __future__ import annotations

import itertools
import json
import math
import unittest
from typing import Any
from unittest import mock

import test_one_gradient as one_gradient
import torch
from harness import Failed, Worker, program_here

from ebb import parts, strides, tree
from ebb.collator import TRIALS, Rows

LINEAR = {"steps": 40, "determinism": "none", "batch_range": {"max": 64, "learning_rate_rule": "linear"}}
ALL = (1, 2, 3)


def together(entry: str, **message: Any) -> Worker:
    """A worker that built a program for one gradient of up to four logical workers."""
    worker = Worker()
    try:
        worker.build(**{"entry": entry if ":" in entry else f"together:{entry}", "spec": LINEAR, "hosted_max": 4, **message})
    except BaseException:
        worker.close()
        raise
    return worker


def strided(worker: Worker, steps: range, rank: int = 0, others: tuple[int, ...] = ALL) -> tuple[torch.Tensor, float, float]:
    """The gradient of these steps, one after the other, as an executor asks for it; weights and losses are added by it."""
    weight, loss = 0.0, 0.0
    for step in steps:
        gradient, of_step, loss_of_step = worker.compute(rank, step, others=others, first=step == steps[0], last=step == steps[-1])
        weight, loss = weight + of_step, loss + loss_of_step
    return gradient, weight, loss


class Gradients(unittest.TestCase):
    def close(self, expected: torch.Tensor, found: torch.Tensor) -> None:
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))

    def test_it_is_the_sum_of_those_of_its_steps_whatever_shares_and_however_few_rows_at_once(self) -> None:
        # The last step of an epoch has 11 rows, of three logical workers: none for the fourth.
        for entry, few in itertools.product(("Weighted", "Few", "ChanceOfFew"), (True, False)):
            with self.subTest(entry, few=few), mock.patch.object(parts, "STRETCH_BYTES_MIN", 1 << 20 if few else 0):
                worker = together(entry)
                try:
                    elements = worker.info["gradient_elements"]
                    for rank, others in ((0, ALL), (2, (3,)), (3, ())):
                        apart = [worker.compute(rank, step, others=others) for step in range(2, 5)]
                        found, weight, loss = strided(worker, range(2, 5), rank, others)
                        self.assertEqual(sum(w for _, w, _ in apart), weight)
                        self.assertEqual(sum(x for _, _, x in apart), loss)
                        self.close(sum(g[:elements] for g, _, _ in apart), found[:elements])
                        again = strided(worker, range(2, 5), rank, others)
                        self.assertTrue(torch.equal(found, again[0]) and weight == again[1], "it repeats")
                finally:
                    worker.close()

    def test_rows_that_are_read_ahead_are_those_of_the_steps(self) -> None:
        ahead, worker = together("ReadAhead"), together("ChanceOfFew", check=False)
        try:
            ahead.expect([0, 1, 2, 3], 1)
            for steps in (range(1, 4), range(4, 5), range(5, 9), range(5, 7)):
                self.assertTrue(torch.equal(strided(ahead, steps)[0], strided(worker, steps)[0]))
        finally:
            ahead.close()
            worker.close()

    def test_what_any_of_the_steps_reaches_is_told(self) -> None:
        worker = together("strided:Parted")
        try:
            elements = worker.info["gradient_elements"]
            for steps, reached in ((range(1, 2), [1, 0]), (range(1, 3), [1, 1]), (range(2, 4), [1, 1])):
                self.assertEqual(reached, strided(worker, steps)[0][elements : elements + 2].tolist(), steps)
        finally:
            worker.close()

    def test_stretches_are_final_only_in_the_last_step(self) -> None:
        with mock.patch.object(parts, "STRETCH_BYTES_MIN", 0):
            worker = together("Few")
            try:
                expected, _, _ = strided(worker, range(0, 3))
                for step in (0, 1):
                    worker.compute(0, step, others=ALL, first=step == 0, last=False)
                found, _, _, said = worker.compute_in_parts(0, 2, others=ALL, first=False)
                self.assertTrue(torch.equal(expected, found))
                self.assertGreater(len(said), 0)
            finally:
                worker.close()

    def test_running_statistics_are_those_after_the_batches_of_every_step(self) -> None:
        for apart in (False, True):
            program = program_here(entry="together:Chance", spec=LINEAR, hosted_max=4, apart=apart)
            for step in range(3):
                program.gradient(0, step, others=ALL, first=step == 0, last=step == 2)
            self.assertEqual(3, int(program.model[2].num_batches_tracked))
            self.assertGreater(int(program.place.buffers.count_nonzero()), 0)
            for step in range(3):
                program.gradient(1, step, others=(3,), first=step == 0, last=step == 2)
            self.assertEqual(0, int(program.place.buffers.count_nonzero()), "those are of who hosts logical worker 0")

    def test_what_is_not_the_next_step_is_added_to_nothing(self) -> None:
        worker = together("Few")
        try:
            for wrong in ((0, 2, ALL), (0, 1, (1, 2)), (1, 1, (2, 3))):
                worker.compute(0, 0, others=ALL, last=False)
                with self.assertRaises(Failed):
                    worker.compute(wrong[0], wrong[1], others=wrong[2], first=False)
            strided(worker, range(0, 2))
            with self.assertRaises(Failed):
                worker.compute(0, 2, others=ALL, first=False)
        finally:
            worker.close()


class OfEbb(one_gradient.OfEbb):
    """Rows in the segment, of one step at a time; the next are foreseen across updates."""

    def gradients(self, program: Any, foreseen: bool) -> list[tuple[bytes, float, float]]:
        found, now = [], self.written(program, 0)
        for step in range(9):
            following: Rows = self.written(program, step + 1)
            number, after = (now.number, following) if foreseen else (0, None)
            first, last = step % 3 == 0, step % 3 == 2
            weight, loss, _ = program.gradient(
                0, step, now.count, start=now.start, number=number, following=after, others=(1, 2), first=first, last=last
            )
            if last:
                found.append((bytes(program.gradient_segment.map), weight, loss))
            now = following
        return found

    def test_no_more_room_is_needed_than_for_a_step(self) -> None:
        program = self.program("Shared")
        self.assertEqual(self.PLACES * self.ROWS * one_gradient.ROW_BYTES, program.batch_segment.size)
        self.gradients(program, True)
        self.assertEqual(9 - TRIALS - 1, program.data.ahead.made)
        program.data.ahead._end()


def adamw(parameter: torch.Tensor, gradients: list[torch.Tensor], taken: list[int], rates: list[float], decay: float) -> torch.Tensor:
    """What the native engine computes (`workers/engine/src/update.rs`), in float64: β to the power of the steps, biases by all steps so far."""
    first, second, step = torch.zeros_like(parameter), torch.zeros_like(parameter), 0
    for gradient, steps, rate in zip(gradients, taken, rates):
        step += steps
        betas = [0.9**steps, 0.999**steps]
        first = betas[0] * first + (1 - betas[0]) * gradient
        second = betas[1] * second + (1 - betas[1]) * gradient**2
        corrected = first / (1 - 0.9**step), second / (1 - 0.999**step)
        parameter = (1 - rate * decay) * parameter - rate * corrected[0] / (corrected[1].sqrt() + 1e-8)
    return parameter


class Updates(unittest.TestCase):
    TAKEN = [1, 4, 3, 2, 1, 16]

    def test_adam_is_that_of_the_native_engine(self) -> None:
        for variant in ({}, {"foreach": True}, {"fused": True}):
            generator = torch.Generator().manual_seed(2)
            start = torch.randn(50, generator=generator)
            gradients = [torch.randn(50, generator=generator) for _ in self.TAKEN]
            parameter = torch.nn.Parameter(start.clone())
            optimizer = torch.optim.AdamW([parameter], lr=0.01, weight_decay=0.1, **variant)
            group, rates = optimizer.param_groups[0], []
            for gradient, steps in zip(gradients, self.TAKEN):
                factor = math.sqrt(steps)
                parameter.grad, before = gradient, (group["lr"], group["betas"])
                with strides.taken(optimizer, steps, factor):
                    optimizer.step()
                rates.append(0.01 * factor)
                self.assertTrue(group["lr"] is before[0] and group["betas"] is before[1], "the same objects")
            expected = adamw(start.double(), [g.double() for g in gradients], self.TAKEN, rates, 0.1)
            torch.testing.assert_close(parameter.double(), expected, rtol=2e-6, atol=2e-6)
            self.assertEqual(float(sum(self.TAKEN)), float(optimizer.state[parameter]["step"]), variant)

    def test_what_an_update_does_not_reach_counts_nothing(self) -> None:
        first, second = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
        optimizer = torch.optim.Adam([first, second])
        for steps, reached in ((3, (first, second)), (2, (first,)), (4, (second,))):
            for parameter in (first, second):
                parameter.grad = torch.ones(2) if any(parameter is one for one in reached) else None
            with strides.taken(optimizer, steps, 1.0):
                optimizer.step()
        self.assertEqual([5.0, 7.0], [float(optimizer.state[p]["step"]) for p in (first, second)])

    def test_others_keep_their_averages_and_have_their_rates_scaled(self) -> None:
        for make in (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), lambda p: torch.optim.NAdam(p, lr=0.1)):
            found = []
            for scaled in (False, True):
                parameter = torch.nn.Parameter(torch.ones(3))
                optimizer = make([parameter])
                for _ in range(3):
                    parameter.grad = torch.ones(3)
                    if not scaled:
                        optimizer.param_groups[0]["lr"] = 0.1 * 4.0
                        optimizer.step()
                    else:
                        with strides.taken(optimizer, 4, 4.0):
                            optimizer.step()
                        self.assertEqual(0.1, optimizer.param_groups[0]["lr"])
                found.append((parameter.detach().clone(), optimizer.param_groups[0].get("betas")))
            self.assertTrue(torch.equal(found[0][0], found[1][0]) and found[0][1] == found[1][1])

    def test_a_rate_is_put_back_when_the_step_fails(self) -> None:
        parameter = torch.nn.Parameter(torch.ones(3))
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        with self.assertRaises(ZeroDivisionError), strides.taken(optimizer, 2, 2.0):
            raise ZeroDivisionError
        self.assertEqual(0.1, optimizer.param_groups[0]["lr"])


class Programs(unittest.TestCase):
    """What a worker keeps after such updates, and what another makes of it."""

    def train(self, worker: Worker, step: int, taken: list[int], factor: Any = float) -> int:
        for steps in taken:
            summed, weight, _ = strided(worker, range(step, step + steps))
            tree.divide(summed[: worker.info["gradient_elements"]], weight)
            worker.apply(summed, step, 1.0, steps, factor(steps))
            step += steps
        return step

    def test_what_counts_counts_steps_and_the_replica_says_nothing_of_a_stride(self) -> None:
        ends = []
        for taken in ([4, 1, 3], [2, 2, 2, 2], [1] * 8):
            program = program_here(entry="strided:Counted", spec=LINEAR, hosted_max=4)
            step = 0
            for steps in taken:
                for each in range(step, step + steps):
                    weight, _, _ = program.gradient(0, each, others=ALL, first=each == step, last=each == step + steps - 1)
                tree.divide(program.host_gradient, weight)
                program.apply(step, 1.0, stride=steps, rate_factor=math.sqrt(steps))
                step += steps
            told = dict(program.parts.state)["told"].tolist()
            self.assertEqual([float(sum(itertools.accumulate(taken)) - len(taken)), 8.0], told, "the last step of each, and how many")
            self.assertEqual(8, program.scheduler.last_epoch)
            self.assertEqual({8.0}, {float(state["step"]) for state in program.optimizer.state.values()})
            ends.append(json.dumps(program._plain(), default=str))
        self.assertEqual(1, len(set(ends)), "rates, βs and schedules are those of the step, whatever updates led there")

    def test_a_replica_goes_on_elsewhere(self) -> None:
        first, second = (together("strided:Counted", spec=LINEAR) for _ in range(2))
        try:
            step = self.train(first, 0, [3, 1, 2])
            second.hold(first.snapshot())
            for worker in (first, second):
                self.train(worker, step, [4, 1])
            self.assertTrue(torch.equal(first.snapshot(), second.snapshot()))
        finally:
            first.close()
            second.close()

    def test_the_job_files_optimizer_is_scaled_after_its_schedule(self) -> None:
        program = program_here(entry="strided:BuiltIn", spec={**LINEAR, "optimizer": {"kind": "sgd", "learning_rate": 0.5}}, hosted_max=4)
        before = [p.detach().clone() for p in program.model.parameters()]
        for step in (0, 1):
            weight, _, _ = program.gradient(0, step, others=ALL, first=step == 0, last=step == 1)
        tree.divide(program.host_gradient, weight)
        gradients = [view.clone() for view in program.place.views]
        program.apply(0, 0.25, stride=2, rate_factor=2.0)
        for old, gradient, parameter in zip(before, gradients, program.model.parameters()):
            torch.testing.assert_close(parameter.detach(), old - 0.5 * 0.25 * 2.0 * gradient)
        self.assertEqual({0.125}, {group["lr"] for group in program.optimizer.param_groups})

    def test_an_optimizer_without_a_rate_is_refused_where_it_would_be_scaled(self) -> None:
        message: dict[str, Any] = {"entry": "strided:NoRate", "hosted_max": 4}
        with self.assertRaises(Failed) as caught:
            together(spec=LINEAR, **message)
        for said in ("`batch_range.learning_rate_rule` is `linear`", "the `lr` of the optimizer Own is None", "`learning_rate_rule: none`"):
            self.assertIn(said, caught.exception.what)
        together(spec={**LINEAR, "batch_range": {"max": 64, "learning_rate_rule": "none"}}, **message).close()


if __name__ == "__main__":
    unittest.main()
