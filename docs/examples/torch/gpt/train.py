"""A small GPT with tied weights on the rows of a text: ebb dataset import text docs/architecture.md --format text --length 65"""

import torch
from torch import nn
from torch.nn import functional as F

import ebb


class Gpt(nn.Module):
    def __init__(self, vocabulary, length, width, layers, heads):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.randn(length, width) * 0.02)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.1, activation="gelu", batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        nn.init.normal_(self.embed.weight, std=0.02)
        self.head.weight = self.embed.weight
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length), persistent=False)

    def forward(self, tokens):
        x = self.embed(tokens) + self.position
        for block in self.blocks:
            x = block(x, src_mask=self.mask, is_causal=True)
        return self.head(self.norm(x))


class Job(ebb.Job):
    def model(self):
        # `sample` says what a row of the dataset holds: {kind: tokens, length: 65, vocabulary: …}
        return Gpt(self.sample["vocabulary"], self.sample["length"] - 1, **self.parameters)

    def loss(self, model, batch):
        scores, targets = model(batch[:, :-1]), batch[:, 1:]
        return F.cross_entropy(scores.flatten(0, 1), targets.flatten(), reduction="sum"), targets.numel()

    def optimizer(self, model):
        matrices = [p for p in model.parameters() if p.ndim > 1]
        others = [p for p in model.parameters() if p.ndim <= 1]
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95))

    def scheduler(self, optimizer):
        warm, total = 20, self.steps
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / warm, max(0.1, 1 - step / total)))
