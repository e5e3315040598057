"""A loop of one's own on torch.distributed: each process takes its share of the rows, DistributedDataParallel adds up the gradients."""

import os
import signal
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

CHECKPOINT = os.path.join(os.environ["EBB_CHECKPOINT_DIR"], "last.pt")
told_to_stop = []


def save(model, optimizer, step):
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    torch.save(state, CHECKPOINT + ".new")
    os.replace(CHECKPOINT + ".new", CHECKPOINT)  # whole or not at all


def main(steps):
    signal.signal(signal.SIGTERM, lambda *_: told_to_stop.append(True))
    torch.manual_seed(7)
    dist.init_process_group("gloo")  # RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set
    rank, world = dist.get_rank(), dist.get_world_size()
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step = 0
    if os.path.exists(CHECKPOINT):
        saved = torch.load(CHECKPOINT)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    print(f"rank {rank} of {world} begins at step {step}")
    parallel = DistributedDataParallel(model)
    while step < steps:
        stop = torch.tensor(len(told_to_stop))
        dist.all_reduce(stop)  # all stop after the same step
        if stop:
            break
        rows = torch.randn(64, 16, generator=torch.Generator().manual_seed(step))[rank::world]
        loss = nn.functional.mse_loss(parallel(rows), rows.sin().sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if rank == 0 and step % 500 == 0:
            save(model, optimizer, step)
            print(f"step {step}: loss {loss:.4f}")
    if rank == 0:
        save(model, optimizer, step)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(steps=int(sys.argv[1]))
