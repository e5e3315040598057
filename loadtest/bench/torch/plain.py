"""The loop that a person would write: the baseline of `ebb bench --engine torch`. Says, as one line of JSON, what each step took.

    python plain.py KIND WIDTH MOMENTUM ROWS BATCHES STEPS

So many batches of so many rows make the gradient of a step.
"""

import json
import sys
import time

import models
import torch

DATASET_ROWS = 1437  # as many as the digits have


def main(kind, width, momentum, rows, batches, steps):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    images, labels = torch.randn(DATASET_ROWS, 64), torch.randint(0, 10, (DATASET_ROWS,))
    model = models.build(kind, int(width))
    optimizer = models.optimizer(model, float(momentum))
    step_ms, order = [], torch.randperm(DATASET_ROWS)
    rows, batches = int(rows), int(batches)
    per_epoch = DATASET_ROWS // rows
    warm = int(steps) // 10
    processor = 0.0
    for step in range(int(steps)):
        if step == warm:
            processor = time.process_time()
        begun = time.perf_counter()
        optimizer.zero_grad()
        for turn in range(step * batches, (step + 1) * batches):
            turn %= per_epoch
            if turn == 0:
                order = torch.randperm(DATASET_ROWS)
            batch = order[turn * rows : (turn + 1) * rows]
            loss = models.summed_loss(model, images[batch], labels[batch]) / (rows * batches)
            loss.backward()
        optimizer.step()
        loss.item()
        step_ms.append((time.perf_counter() - begun) * 1e3)
    processor_ms = (time.process_time() - processor) * 1e3 / max(int(steps) - warm, 1)
    print(json.dumps({"step_ms": step_ms, "processor_ms": processor_ms}))


main(*sys.argv[1:])
