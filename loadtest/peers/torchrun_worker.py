"""What `torchrun` starts in each worker: the loop of its documentation, with a checkpoint every 20 steps, from which a restart goes on."""

from __future__ import annotations

import os
import time

BEGUN = time.time()
CHECKPOINT_EVERY = 20


def main() -> None:
    folder, node = os.environ["PEERS_FOLDER"], os.environ["PEERS_NODE"]
    log = open(f"{folder}/{node}.{os.getpid()}.log", "w", buffering=1)
    log.write(f"start {BEGUN:.4f}\n")
    import model as peers
    import torch
    import torch.distributed as dist
    from torch.nn.functional import cross_entropy
    from torch.nn.parallel import DistributedDataParallel

    checkpoint, workers = f"{folder}/checkpoint.pt", int(os.environ["PEERS_WORKERS"])
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = peers.build()
    optimizer = peers.optimizer(model)
    step = 0
    if os.path.exists(checkpoint):
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    dist.barrier()
    parallel = DistributedDataParallel(model)
    # As many rows a step as the other runtimes, however many workers there are.
    rows = peers.ROWS * workers // world
    last = int(os.environ.get("PEERS_STEPS", "0"))
    while not last or step < last:
        features, labels = peers.batch(step * 1000 + rank, rows)
        optimizer.zero_grad()
        cross_entropy(parallel(features), labels).backward()
        optimizer.step()
        step += 1
        log.write(f"step {time.time():.4f} {step} {world}\n")
        if rank == 0 and step % CHECKPOINT_EVERY == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, checkpoint + ".new")
            os.replace(checkpoint + ".new", checkpoint)
    log.write(f"digest {peers.digest(model)}\n")
    dist.destroy_process_group()


main()
