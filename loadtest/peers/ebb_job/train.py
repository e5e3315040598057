"""The model of `model.py` as a job of Ebb. Each executor prints when a step was done; `ebb logs` shows it."""

import time

import ebb
import model as peers
import torch

#: Rows of the dataset of one logical worker, as `runtimes.py` submits the job.
BATCH_ROWS = 32


class Job(ebb.Job):
    def model(self):
        return peers.build()

    def optimizer(self, model):
        return peers.optimizer(model)

    def loss(self, model, batch):
        # Rows of chance as the peers': every generator is seeded from (seed, logical worker, step), so they depend on these alone. Without determinism the batch is
        # of several logical workers.
        rows = peers.ROWS * (len(batch[1]) // BATCH_ROWS)
        rows, labels = torch.randn(rows, peers.FEATURES), torch.randint(0, peers.CLASSES, (rows,))
        return torch.nn.functional.cross_entropy(model(rows), labels, reduction="sum"), len(labels)

    def on_step(self, model, step):
        print(f"step {time.time():.4f} {step + 1}", flush=True)
