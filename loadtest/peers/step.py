"""Steps of Ebb's own models beside the same models in PyTorch, one thread each, in turns.

    python step.py --step target/release/examples/step [--models mlp,cnn,gpt] [--rounds 20] [--seconds 0.5]

For each model: the milliseconds of a step of both (medians of the rounds), their ratio and its 95 % interval (Student's t over the logarithms of the
rounds' ratios; a round is one turn of each). PyTorch runs as it comes, with the faster of AdamW's ways (`fused`). See README.md.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

#: Student's t for 95 %, two-sided, by degrees of freedom; beyond, the normal distribution's is near enough.
T_95 = {4: 2.776, 9: 2.262, 14: 2.145, 19: 2.093, 29: 2.045, 39: 2.023}


class Block(nn.Module):
    """Two 3×3 convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.GroupNorm(groups, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.GroupNorm(groups, outputs)
        same = stride == 1 and inputs == outputs
        changed = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.GroupNorm(groups, outputs))
        self.shortcut = nn.Identity() if same else changed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(inner)) + self.shortcut(x))


class Cnn(nn.Module):
    """Ebb's `cnn`."""

    def __init__(self, inputs: int, channels: list[int], blocks: int, groups: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(inputs, channels[0], 3, 1, 1, bias=False)
        self.norm = nn.GroupNorm(groups, channels[0])
        parts, width = [], channels[0]
        for stage, outputs in enumerate(channels):
            for block in range(blocks):
                parts.append(Block(width, outputs, 2 if stage > 0 and block == 0 else 1, groups))
                width = outputs
        self.blocks = nn.Sequential(*parts)
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks(F.relu(self.norm(self.stem(x))))
        return self.head(x.mean((2, 3)))


class Attending(nn.Module):
    """A block of Ebb's `gpt`."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.expand, self.contract = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        samples, context, width = x.shape
        mixed = self.mix(self.norm1(x)).view(samples, context, 3, self.heads, width // self.heads)
        queries, keys, values = mixed.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).reshape(samples, context, width))
        return x + self.contract(F.gelu(self.expand(self.norm2(x))))


class Gpt(nn.Module):
    """Ebb's `gpt`."""

    def __init__(self, layers: int, heads: int, width: int, context: int, vocabulary: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Attending(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions.weight
        return self.head(self.norm(self.blocks(x))).flatten(0, 1)


def perceptron(*widths: int) -> nn.Module:
    """Ebb's `mlp`."""
    parts: list[nn.Module] = []
    for inputs, outputs in zip(widths, widths[1:]):
        parts += [nn.Linear(inputs, outputs), nn.GELU()]
    return nn.Sequential(*parts[:-1])


def images(samples: int, *shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples of chance."""
    return torch.rand(samples, *shape) * 2 - 1, torch.arange(samples) % 10


def text(samples: int, context: int, vocabulary: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens of chance, and what follows them."""
    tokens = torch.randint(0, vocabulary, (samples, context + 1))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].flatten()


#: The same sizes as in `workers/engine/examples/step.rs`.
MODELS: dict[str, Callable[[], tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]]] = {
    "mlp": lambda: (perceptron(784, 256, 10), images(128, 784)),
    "mlp-wide": lambda: (perceptron(784, 1024, 1024, 10), images(64, 784)),
    "cnn": lambda: (Cnn(1, [16, 32], 1, 4), images(32, 1, 28, 28)),
    "cnn-wide": lambda: (Cnn(3, [32, 64, 128], 1, 8), images(16, 3, 32, 32)),
    "gpt": lambda: (Gpt(4, 4, 128, 128, 96), text(8, 128, 96)),
}
#: What the ratio is to be at most.
GOALS = {"mlp": 1.0, "mlp-wide": 1.0, "cnn": 1.5, "cnn-wide": 1.5, "gpt": 1.2}


class Peer:
    """A model in PyTorch."""

    def __init__(self, name: str) -> None:
        torch.manual_seed(0)
        self.model, (self.inputs, self.targets) = MODELS[name]()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.001, weight_decay=0.01, fused=True)

    def seconds(self, steps: int) -> float:
        begun = time.perf_counter()
        for _ in range(steps):
            self.optimizer.zero_grad(set_to_none=True)
            F.cross_entropy(self.model(self.inputs), self.targets).backward()
            self.optimizer.step()
        return time.perf_counter() - begun


class Ours:
    """The same in Ebb's engine, in a process of its own."""

    def __init__(self, program: str, name: str) -> None:
        self.name = name
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def seconds(self, steps: int) -> float:
        assert self.process.stdin and self.process.stdout
        print(self.name, steps, file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline().split()[0])


def compare(program: str, name: str, rounds: int, seconds: float) -> dict[str, object]:
    """Alternates, beginning with the other one each round."""
    ours, peer = Ours(program, name), Peer(name)
    counts = {}
    for side in (ours, peer):
        side.seconds(5)
        counts[side] = max(1, round(seconds / (side.seconds(5) / 5)))
    times: dict[object, list[float]] = {ours: [], peer: []}
    for number in range(rounds):
        for side in (ours, peer) if number % 2 else (peer, ours):
            times[side].append(side.seconds(counts[side]) / counts[side] * 1e3)
    logs = [math.log(mine / its) for mine, its in zip(times[ours], times[peer])]
    mean, spread = statistics.fmean(logs), statistics.stdev(logs) / math.sqrt(rounds)
    half = T_95.get(rounds - 1, 1.96 if rounds > 30 else 2.776) * spread
    low, high = math.exp(mean - half), math.exp(mean + half)
    goal = GOALS[name]
    return {
        "model": name, "ebb_ms": round(statistics.median(times[ours]), 3), "torch_ms": round(statistics.median(times[peer]), 3),
        "ratio": round(math.exp(mean), 3), "interval_95": [round(low, 3), round(high, 3)], "goal": goal,
        "met": True if high <= goal else False if low > goal else "not known", "rounds": rounds, "load": round(os.getloadavg()[0], 1),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--step", required=True, help="the program `cargo build --release -p workers-engine --example step` makes")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=0.5, help="of one turn")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.models.split(","):
        print(json.dumps(compare(options.step, name, options.rounds, options.seconds)), flush=True)


if __name__ == "__main__":
    main()
