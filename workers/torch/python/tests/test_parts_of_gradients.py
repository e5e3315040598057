"""Stretches of a gradient that are final while backward goes on: said once, in its order, and never wrong."""

from __future__ import annotations

import unittest
from typing import Any
from unittest import mock

from harness import Failed, Worker

from ebb import parts
from ebb.layout import Slot

ENTRIES = [
    *(f"vision:{entry}" for entry in ("Job", "Everything", "Several", "Autocast", "HalfParameters", "ChannelsLast")),
    *(f"text:{entry}" for entry in ("Job", "Reentrant", "Lora", "Routed", "Sparse", "Recurrent")),
]


def worker(entry: str, **message: Any) -> Worker:
    """A worker that says stretches of any size: it is forked from this process."""
    with mock.patch.object(parts, "STRETCH_BYTES_MIN", 64):
        made = Worker()
    made.build(entry=entry, check=False, **message)
    return made


class Stretches(unittest.TestCase):
    def test_the_gradient_is_the_same_and_what_was_said_is_in_it(self) -> None:
        for entry in ENTRIES:
            with self.subTest(entry):
                host = worker(entry)
                try:
                    for step, rank in ((0, 0), (0, 3), (1, 1), (2, 2)):
                        gradient, weight, loss, said = host.compute_in_parts(rank, step)
                        expected = host.compute(rank, step)
                        self.assertEqual((weight, loss), expected[1:])
                        self.assertTrue(gradient.equal(expected[0]))
                        self.assertTrue(1 <= len(said) <= parts.MESSAGES_MAX, said)
                        elements = [element for message in said for start, end in message for element in range(start, end)]
                        self.assertEqual(len(elements), len(set(elements)), "said twice")
                        self.assertLess(max(elements), host.info["gradient_elements"])
                finally:
                    host.close()

    def test_they_come_in_the_order_of_backward_and_neighbours_are_one(self) -> None:
        host = worker("layers:Job")
        try:
            said = host.compute_in_parts(0, 0)[3]
            # Each layer of 32 × 32 + 32 elements is more than a sixteenth of eight with its weight, and a weight comes after its bias.
            layers = [[(1056 * layer, 1056 * (layer + 1))] for layer in reversed(range(8))]
            self.assertEqual(layers, said)
        finally:
            host.close()

    def test_small_models_and_those_on_a_device_say_nothing(self) -> None:
        with mock.patch.object(parts, "STRETCH_BYTES_MIN", 64):
            apart = Worker()
        small = Worker()
        try:
            apart.build(entry="layers:Job", apart=True)
            small.build(entry="layers:Job")
            self.assertEqual(([], []), (apart.compute_in_parts(0, 0)[3], small.compute_in_parts(0, 0)[3]))
            small.build(entry="layers:Wide")
            layer = 512 * 512 + 512
            self.assertEqual([[(2 * layer, 3 * layer)], [(layer, 2 * layer)], [(0, layer)]], small.compute_in_parts(0, 0)[3])
        finally:
            apart.close(), small.close()

    def test_a_gradient_that_fails_has_said_some_and_the_next_is_as_ever(self) -> None:
        host = worker("layers:Job")
        try:
            expected = host.compute(0, 5)[0]
            for step, kind, text in ((3, "user", "ArithmeticError in backward: in the midst of backward"), (4, "nonfinite", "the loss of step 4")):
                with self.assertRaises(Failed) as caught:
                    host.compute_in_parts(0, step)
                self.assertEqual(kind, caught.exception.kind)
                self.assertIn(text, caught.exception.what)
                gradient, _, _, said = host.compute_in_parts(0, 5)
                self.assertEqual(8, len(said), "what was not said before is not said later")
                self.assertTrue(gradient.equal(expected))
        finally:
            host.close()


class Places(unittest.TestCase):
    def test_neighbours_are_one(self) -> None:
        slots = [Slot(str(word), (elements,), (1,), __import__("torch").float32, word) for word, elements in ((32, 9), (0, 16), (16, 3), (64, 0), (96, 1))]
        self.assertEqual([(0, 48), (96, 112)], parts.joined(slots))


if __name__ == "__main__":
    unittest.main()
