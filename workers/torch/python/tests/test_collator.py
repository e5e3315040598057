"""collate() ahead of its step: the same bits, wherever it is called, and in the step where it has to be."""

from __future__ import annotations

import contextlib
import io
import struct
import unittest
from typing import Any

import torch
from harness import program_here

from ebb import arena
from ebb.collator import TRIALS, Collator, Rows

SAMPLE = {"kind": "classified", "shape": [1, 8, 8], "classes": 10}
RANKS, ROWS = 2, 6
PLACE_BYTES = ROWS * (8 + 4 * 64)
PLACES = 4


class Trainer:
    """A program and the executor's part: writes rows ahead of a step, says what lies there, applies the mean."""

    def __init__(self, entry: str) -> None:
        self.program = program_here(
            entry=f"collates:{entry}", sample=SAMPLE, batch_bytes=PLACE_BYTES, batch_places=PLACES, batch_size=ROWS, workers=RANKS, rows=1000
        )
        self.number = 0

    @property
    def collator(self) -> Collator:
        assert self.program.data.ahead is not None
        return self.program.data.ahead

    def write(self, rank: int, step: int) -> Rows:
        """The rows of a turn, in the next place."""
        self.number += 1
        start = self.number % PLACES * PLACE_BYTES
        generator = torch.Generator().manual_seed(step * RANKS + rank)
        labels, images = torch.randint(0, 10, (ROWS,), generator=generator), torch.rand(ROWS, 1, 8, 8, generator=generator)
        self.program.batch_segment.map[start : start + PLACE_BYTES] = labels.numpy().tobytes() + images.numpy().tobytes()
        return Rows(rank, step, start, ROWS, self.number)

    def train(self, steps: int, foreseen: bool = True) -> bytes:
        """Digestible: the replica and all that was computed on the way."""
        found = b""
        turns = [(rank, step) for step in range(steps) for rank in range(RANKS)]
        now = self.write(*turns[0])
        for index, (rank, step) in enumerate(turns):
            following = self.write(*turns[index + 1]) if index + 1 < len(turns) else None
            weight, loss, _ = self.program.gradient(
                rank, step, now.count, start=now.start, number=now.number if foreseen else 0, following=following if foreseen else None
            )
            found += struct.pack("<dd", weight, loss)
            if rank == RANKS - 1:
                self.program.apply(step, 1.0)
            if following is not None:
                now = following
        return found + bytes(self.program.replica_segment.map)


class Ahead(unittest.TestCase):
    def said(self, entry: str, steps: int = 8) -> tuple[Trainer, str]:
        """Trains with what comes next foreseen, to the bits of a training in which it never is; what was said on the way."""
        expected = Trainer(entry).train(steps, foreseen=False)
        trainer, output = Trainer(entry), io.StringIO()
        with contextlib.redirect_stderr(output):
            self.assertEqual(expected, trainer.train(steps), entry)
        return trainer, output.getvalue()

    def test_it_is_called_ahead_and_the_bits_are_the_same(self) -> None:
        for entry in ("Job", "Views"):
            with self.subTest(entry):
                trainer, said = self.said(entry)
                self.assertEqual((8 * RANKS - TRIALS - 1, ""), (trainer.collator.made, said))
                trainer.collator._end()

    def test_what_the_loader_says_holds_and_what_is_quick_is_not_worth_it(self) -> None:
        for entry in ("InTheStep", "Quick"):
            with self.subTest(entry):
                trainer, said = self.said(entry, 6)
                self.assertEqual((0, 0, ""), (trainer.collator.made, trainer.collator.pid, said))

    def test_what_is_no_function_of_its_rows_alone_is_called_in_the_step(self) -> None:
        cases = [
            ("ReadsModel", "its process ended, as it does where it reads parameters"),
            ("ReadsStep", "it returned something else there"),
            ("NeedsStep", "AttributeError in collate(): 'NeedsStep' object has no attribute 'step'"),
            ("Returns", "what it returns cannot be pickled"),
            ("Shares", "two of its tensors share memory"),
            ("Ends", "its process ended"),
            ("Raises", "ValueError in collate(): not here"),
        ]
        for entry, why in cases:
            with self.subTest(entry):
                trainer, said = self.said(entry, 6)
                self.assertEqual(1, said.count("ebb: collate() is called in the step, and not ahead of it: "), said)
                self.assertIn(why, said)
                self.assertEqual((0, 0), (trainer.collator.made, trainer.collator.pid))

    def test_a_batch_that_needs_more_room_is_made_in_the_step_and_the_next_ahead_again(self) -> None:
        trainer, said = self.said("Grows", 12)
        self.assertEqual("", said)
        self.assertGreater(trainer.collator.made, 4)
        trainer.collator._end()

    def test_what_was_foreseen_and_is_not_asked_for_is_never_used(self) -> None:
        trainer = Trainer("Job")
        trainer.train(8)
        program, made = trainer.program, trainer.collator.made
        # The same turn lies there, and then something else in its place: another membership.
        first, wrong = trainer.write(0, 8), trainer.write(1, 8)
        program.gradient(0, 8, first.count, start=first.start, number=first.number, following=wrong)
        trainer.number = wrong.number - 1 + PLACES
        right = trainer.write(1, 8)
        self.assertEqual((wrong.start, wrong[:2]), (right.start, right[:2]))
        program.gradient(1, 8, right.count, start=right.start, number=right.number)
        self.assertEqual(made, trainer.collator.made, "made in the step")
        found, alone = bytes(program.gradient_segment.map), trainer.write(1, 8)
        program.gradient(1, 8, alone.count, start=alone.start)
        self.assertEqual(bytes(program.gradient_segment.map), found)
        # It goes on ahead once what nobody asked for is out of the way.
        for step in range(9, 40):
            now, following = trainer.write(0, step), trainer.write(1, step)
            program.gradient(0, step, now.count, start=now.start, number=now.number, following=following)
            program.gradient(1, step, following.count, start=following.start, number=following.number)
        self.assertGreater(trainer.collator.made, made)
        trainer.collator._end()

    def test_a_job_of_several_threads_is_left_alone(self) -> None:
        trainer = Trainer("Job")
        trainer.program.data.ahead = None
        trainer.program.data.call_ahead(2, [])
        self.assertIsNone(trainer.program.data.ahead)


class Packed(unittest.TestCase):
    def test_tensors_are_as_they_were(self) -> None:
        memory = torch.arange(200, dtype=torch.uint8)
        batch: Any = {
            "odd": memory[3:43].view(torch.uint8), "shape": torch.rand(2, 3, 4).transpose(0, 2), "bool": torch.tensor([True, False]),
            "complex": torch.rand(3, dtype=torch.complex64), "scalar": torch.tensor(3.5), "empty": torch.empty(0, 4), "rest": [1, "a", None],
        }  # fmt: skip
        shared = arena.Arena(2, 4096)
        made = shared.unpack(shared.pack(batch, 1))
        self.assertEqual(batch["rest"], made["rest"])
        for name, tensor in batch.items():
            if isinstance(tensor, torch.Tensor):
                self.assertTrue(torch.equal(tensor, made[name]), name)
                self.assertEqual((tensor.dtype, tensor.stride()), (made[name].dtype, made[name].stride()), name)
                if tensor.numel():
                    self.assertEqual(tensor.data_ptr() % arena.LINE_BYTES, made[name].data_ptr() % arena.LINE_BYTES, name)

    def test_what_cannot_be_the_same_is_refused(self) -> None:
        row = torch.rand(4)
        for batch in (row.expand(3, 4), [row, row[1:]], row.requires_grad_(), torch.nn.Parameter(row.detach()), torch.rand(4, 4)[:, 1], lambda: 0):
            with self.assertRaises(arena.Unpackable):
                arena.bytes_of(batch)
        with self.assertRaises(arena.TooLarge):
            arena.Arena(2, 64).pack(torch.zeros(17), 0)


if __name__ == "__main__":
    unittest.main()
