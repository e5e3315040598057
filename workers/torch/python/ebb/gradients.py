"""Takes each parameter's gradient out of autograd, into the memory where gradients are summed. Knows places, not what is computed.

Large ones are taken by a hook as backward finishes them, so that each is freed at once and what is final can be said while the rest is
computed. A hook costs as much as a small gradient does, so a model with few of them has each taken when backward is done. Where several batches
make one gradient, each backward adds to what those before it gave.
"""

from __future__ import annotations

import ctypes
from typing import Any, Callable

import torch

from ebb import parts
from ebb.layout import Slot
from ebb.refuse import Refused
from ebb.segment import WORD_BYTES


class Gradients:
    """The gradients of these parameters, at these places of so many elements."""

    def __init__(self, trainable: list[tuple[str, torch.nn.Parameter]], slots: list[Slot], elements: int) -> None:
        self.names, self.parameters = [name for name, _ in trainable], [p for _, p in trainable]
        #: How often each was finished in the last backward.
        self.counts = [0] * len(trainable)
        #: Whether a backward before that one, of the same gradient, reached it.
        self.before = [False] * len(trainable)
        #: The same in the self-check, once it has been seen.
        self.expected: list[int] | None = None
        #: Where they are taken to.
        self.views: list[torch.Tensor] = []
        self.parts = parts.Parts(slots, elements)
        self.few = elements * WORD_BYTES <= parts.STRETCH_BYTES_MIN
        self.divisor: float | None = None
        self.divided = [False] * len(trainable)
        self.hooks = [p.register_post_accumulate_grad_hook(self._taker(index)) for index, p in enumerate(self.parameters)]

    def begin(self) -> None:
        """A gradient begins: a backward follows."""
        self.divisor = None
        self.before[:] = [False] * len(self.before)
        self._await()

    def again(self) -> None:
        """Another backward of the same gradient follows."""
        self.before[:] = self.reached()
        self._await()

    def _await(self) -> None:
        for index, parameter in enumerate(self.parameters):
            parameter.grad = None
            self.counts[index] = 0

    def reached(self) -> list[bool]:
        """Of each, whether there is one."""
        return [before or count > 0 for before, count in zip(self.before, self.counts)]

    def are_there(self) -> bool:
        """Whether some were computed already."""
        return any(self.counts) or (not self.hooks and any(parameter.grad is not None for parameter in self.parameters))

    def divide_by(self, weight: float) -> None:
        """Each is divided by this weight as it is taken: one pass less where no other gradient is added to it."""
        self.divisor = ctypes.c_float(weight).value  # as the executor divides: by the nearest float32
        self.divided[:] = [False] * len(self.divided)

    def done(self) -> None:
        """A backward is done: what was not taken yet."""
        if not self.hooks:
            self._take_all()

    def end(self) -> None:
        """All are done: zeros where there is none."""
        weightless = self.divisor is not None and not self.divisor > 0
        for index, reached in enumerate(self.reached()):
            if not reached or weightless:
                self.views[index].zero_()
            elif self.divisor is not None and not self.divided[index]:
                self.views[index].div_(self.divisor)

    def seen(self) -> None:
        """The self-check has seen how often each is finished. Where each is so once at most, and they are few, hooks go."""
        self.expected = list(self.counts)
        if self.few and all(count <= 1 for count in self.expected):
            for hook in self.hooks:
                hook.remove()
            self.hooks.clear()

    def check(self) -> None:
        """Whether each was finished as often as in the self-check, so that nothing was final too early."""
        if self.expected is None:
            return
        for count, expected, name in zip(self.counts, self.expected, self.names):
            if count > 1 and count != expected:
                raise Refused(
                    f"the gradient of `{name}` was finished {count} times in one backward and {expected} times in the self-check; "
                    "use the non-reentrant kind of activation checkpointing (use_reentrant=False)"
                )

    def divides(self, index: int, gradient: torch.Tensor) -> bool:
        """Whether it is divided as it is taken: nothing is added to it, and it is as exact as the quotient has to be."""
        alone = self.expected is not None and self.expected[index] == 1
        return self.divisor is not None and self.divisor > 0 and alone and gradient.dtype is torch.float32

    def _take_all(self) -> None:
        taken, views, added, sums = [], [], [], []
        for index, parameter in enumerate(self.parameters):
            gradient = parameter.grad
            if gradient is None:
                continue
            parameter.grad = None
            self.counts[index] = 1
            (added if self.before[index] else taken).append(_plain(gradient))
            (sums if self.before[index] else views).append(self.views[index])
        with torch.no_grad():
            if added:
                torch._foreach_add_(sums, added)
            if taken:
                torch._foreach_copy_(views, taken)
                if self.divisor is not None and self.divisor > 0:
                    torch._foreach_div_(views, self.divisor)
                    self.divided[:] = [True] * len(self.divided)

    def _taker(self, index: int) -> Callable[[torch.Tensor], None]:
        counts, stretches = self.counts, self.parts

        def take(parameter: torch.Tensor) -> None:
            if parameter.grad is None:
                return
            gradient = _plain(parameter.grad)
            parameter.grad = None
            view = self.views[index]
            if counts[index] > 0 or self.before[index]:
                view.add_(gradient)
            elif self.divides(index, gradient):
                torch.div(gradient, self.divisor, out=view)
                self.divided[index] = True
            else:
                view.copy_(gradient)
            counts[index] += 1
            # Where a parameter's gradient is finished several times, the self-check has counted how often; any other count fails the step.
            if stretches.say is not None and self.expected is not None and counts[index] == self.expected[index]:
                stretches.final(index)

        return take


def _plain(gradient: Any) -> torch.Tensor:
    """Dense, and detached: under create_graph a gradient has a graph of its own."""
    dense = gradient if gradient.layout is torch.strided else gradient.to_dense()
    return dense.detach() if dense.requires_grad else dense
