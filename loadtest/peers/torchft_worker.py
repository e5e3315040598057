"""One replica group of torchft with one worker: the loop of its documentation over gloo, with the lighthouse in PEERS_LIGHTHOUSE."""

from __future__ import annotations

import logging
import os
import signal
import time
from datetime import timedelta

BEGUN = time.time()


def main() -> None:
    folder, node = os.environ["PEERS_FOLDER"], os.environ["PEERS_NODE"]
    log = open(f"{folder}/{node}.{os.getpid()}.log", "w", buffering=1)
    log.write(f"start {BEGUN:.4f}\n")
    import model as peers
    import torch.distributed as dist
    from torch.nn.functional import cross_entropy
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

    logging.basicConfig(level=logging.WARNING)
    workers, timeout = int(os.environ["PEERS_WORKERS"]), timedelta(seconds=float(os.environ["PEERS_TIMEOUT_S"]))
    model = peers.build()
    inner = peers.optimizer(model)

    def state() -> dict:
        return {"model": model.state_dict(), "optimizer": inner.state_dict()}

    def load(saved: dict) -> None:
        model.load_state_dict(saved["model"])
        inner.load_state_dict(saved["optimizer"])

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timeout), min_replica_size=1, load_state_dict=load, state_dict=state, replica_id=f"{node}_",
        store_addr="127.0.0.1", store_port=store.port, rank=0, world_size=1, timeout=timeout,
        lighthouse_addr=os.environ["PEERS_LIGHTHOUSE"], hostname="127.0.0.1",
    )  # fmt: skip
    parallel, optimizer = DistributedDataParallel(manager, model), Optimizer(manager, inner)

    def leave(*_: object) -> None:
        manager.shutdown()
        os._exit(0)

    signal.signal(signal.SIGTERM, leave)
    world, last = workers, int(os.environ.get("PEERS_STEPS", "0"))
    while not last or manager.current_step() < last:
        before = manager.current_step()
        # How many take part is known after a step; a step later the share of each is right again.
        features, labels = peers.batch(before * 1000 + ord(node[-1]), peers.ROWS * workers // max(world, 1))
        optimizer.zero_grad()
        cross_entropy(parallel(features), labels).backward()
        optimizer.step()
        world, after = manager.num_participants(), manager.current_step()
        log.write(f"{'step' if after > before else 'discarded'} {time.time():.4f} {after} {world}\n")
    log.write(f"digest {peers.digest(model)}\n")
    manager.shutdown()


main()
