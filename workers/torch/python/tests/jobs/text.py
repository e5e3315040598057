"""Sequence models: tied weights, a frozen base with low-rank adapters, experts that see no gradient, sparse embeddings, an LSTM."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import ebb

VOCABULARY, LENGTH, WIDTH = 31, 12, 16


class Tokens(torch.utils.data.Dataset):
    def __init__(self, rows=90):
        self.tokens = torch.randint(0, VOCABULARY, (rows, LENGTH + 1), generator=torch.Generator().manual_seed(2))

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, row):
        return self.tokens[row]


class Gpt(nn.Module):
    def __init__(self, reentrant=None):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.02)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0.1, batch_first=True, norm_first=True) for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("mask", torch.ones(LENGTH, LENGTH).triu(1).bool(), persistent=False)
        self.reentrant = reentrant

    def forward(self, tokens):
        x = self.embed(tokens) + self.position
        for block in self.blocks:
            if self.reentrant is None:
                x = block(x, src_mask=self.mask)
            else:
                x = checkpoint(block, x, self.mask, use_reentrant=self.reentrant)
        return self.head(x)


class Job(ebb.Job):
    def model(self):
        return Gpt()

    def dataset(self):
        return Tokens()

    def loss(self, model, batch):
        scores = model(batch[:, :-1])
        return F.cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten(), reduction="sum"), batch[:, 1:].numel()


class Native(Job):
    def dataset(self):
        return None


class Reentrant(Job):
    def model(self):
        return Gpt(reentrant=True)


class LowRank(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(4, base.in_features) * 0.1)
        self.up = nn.Parameter(torch.zeros(base.out_features, 4))

    def forward(self, x):
        return self.base(x) + x @ self.down.t() @ self.up.t()


class Lora(Job):
    def model(self):
        model = Gpt().requires_grad_(False)
        for block in model.blocks:
            block.linear1, block.linear2 = LowRank(block.linear1), LowRank(block.linear2)
        return model


class Routed(Job):
    """Each rank and step uses one of the experts; the others get no gradient."""

    def model(self):
        model = Gpt()
        model.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(6))
        return model

    def loss(self, model, batch):
        x = model.embed(batch[:, :-1]) + model.position
        x = x + model.experts[int(batch[0, 0]) % 6](x)
        return F.cross_entropy(model.head(x).flatten(0, 1), batch[:, 1:].flatten(), reduction="sum"), batch[:, 1:].numel()

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, dampening=0.5, weight_decay=0.1)


class Sparse(Job):
    def model(self):
        model = Gpt()
        model.extra = nn.Embedding(VOCABULARY, WIDTH, sparse=True)
        return model

    def loss(self, model, batch):
        x = model.embed(batch[:, :-1]) + model.extra(batch[:, :-1])
        return F.cross_entropy(model.head(x).flatten(0, 1), batch[:, 1:].flatten(), reduction="sum"), batch[:, 1:].numel()


class Recurrent(Job):
    """A dropout between layers, a running buffer that is replaced instead of changed, a transposed weight."""

    def model(self):
        model = nn.Module()
        model.embed = nn.Embedding(VOCABULARY, WIDTH)
        model.lstm = nn.LSTM(WIDTH, WIDTH, 2, dropout=0.1, batch_first=True)
        model.out = nn.Parameter(torch.randn(VOCABULARY, WIDTH).t() * 0.1)
        model.register_buffer("seen", torch.zeros((), dtype=torch.float64))
        return model

    def loss(self, model, batch):
        x, _ = model.lstm(model.embed(batch[:, :-1]))
        model.seen = model.seen * 0.9 + float(x.detach().mean())
        return F.cross_entropy((x @ model.out).flatten(0, 1), batch[:, 1:].flatten(), reduction="sum"), batch[:, 1:].numel()
