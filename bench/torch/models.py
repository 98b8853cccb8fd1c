"""The models of bench/*.yaml in PyTorch, and a step of their training: for train.py and ddp.py beside it.

Set the environment that PyTorch's libraries read when they load (threads) before this is imported.
"""
import contextlib

import torch
import torch.nn as nn
import torch.nn.functional as F


# ---- The models ----

def cnn():
    return nn.Sequential(nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU(True), nn.Conv2d(10, 20, 5), nn.MaxPool2d(2),
                         nn.ReLU(True), nn.Flatten(), nn.Linear(320, 50), nn.ReLU(True), nn.Linear(50, 10))


def cnn2():
    return nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(True),
                         nn.Conv2d(12, 24, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(True),
                         nn.Flatten(), nn.Linear(24 * 8 * 8, 10))


def mlp():
    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(True), nn.Linear(512, 512), nn.ReLU(True), nn.Linear(512, 10))


class Residual(nn.Module):
    def __init__(self, body, shortcut):
        super().__init__()
        self.body, self.shortcut = body, shortcut

    def forward(self, x):
        return F.relu_(self.body(x) + (self.shortcut(x) if self.shortcut else x))


def chain(inputs, plan):
    """Convolutions (channels, kernel, stride), each with a batch norm, relus between them."""
    parts = []
    for channels, kernel, stride in plan:
        parts += [nn.Conv2d(inputs, channels, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(channels),
                  nn.ReLU(True)]
        inputs = channels
    return nn.Sequential(*parts[:-1])


def resnet(blocks, bottleneck, classes, cifar):
    parts = [chain(3, [(64, 3, 1)]), nn.ReLU(True)] if cifar else \
            [chain(3, [(64, 7, 2)]), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)]
    have = 64
    for stage, count in enumerate(blocks):
        for block in range(count):
            c, stride = 64 << stage, 2 if stage and not block else 1
            out = 4 * c if bottleneck else c
            plan = [(c, 1, 1), (c, 3, stride), (out, 1, 1)] if bottleneck else [(c, 3, stride), (c, 3, 1)]
            shortcut = chain(have, [(out, 1, stride)]) if stride != 1 or have != out else None
            parts.append(Residual(chain(have, plan), shortcut))
            have = out
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(have, classes))


class Block(nn.Module):
    def __init__(self, context, width, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.register_buffer("mask", torch.triu(torch.ones(context, context, dtype=torch.bool), 1), persistent=False)

    def forward(self, x):
        n, t, d = x.shape
        q, k, v = (z.view(n, t, self.heads, -1).transpose(1, 2) for z in self.qkv(self.ln1(x)).split(d, dim=2))
        scores = (q @ k.transpose(2, 3) * (d // self.heads) ** -0.5).masked_fill(self.mask, float("-inf"))
        x = x + self.proj((F.softmax(scores, 3) @ v).transpose(1, 2).reshape(n, t, d))
        return x + self.down(F.gelu(self.up(self.ln2(x))))  # exact: 1.13 has no fast kernel for the one by tanh


class Gpt(nn.Module):
    """Gives logits of all positions, one below the other."""

    def __init__(self, vocab, context, layers, heads, width):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(context, width, heads) for _ in range(layers)))
        self.ln = nn.LayerNorm(width)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids):
        return F.linear(self.ln(self.blocks(self.wte(ids) + self.wpe.weight)), self.wte.weight).flatten(0, 1)


class Dlrm(nn.Module):
    """Tables with gradients of touched rows alone; logits of class 1."""

    def __init__(self, tables, rows, dim):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, dim, mode="sum", sparse=True) for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(13, 64), nn.ReLU(True), nn.Linear(64, dim), nn.ReLU(True))
        self.top = nn.Sequential(nn.Linear(dim + tables * (tables + 1) // 2, 64), nn.ReLU(True), nn.Linear(64, 1))
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, -1), persistent=False)

    def forward(self, batch):
        x, ids = batch
        x, at = self.bottom(x), torch.arange(len(x))
        t = torch.stack([x] + [table(ids[i], at) for i, table in enumerate(self.tables)], dim=1)
        dots = torch.bmm(t, t.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([x, dots], 1)).squeeze(1)


# model, input, classes, batch, batches in memory, optimiser. Inputs that are no shape: ids below the second number; numbers
# beside ids of so many tables.
TOKENS, CLICKS = "tokens", "clicks"
MODELS = {
    "gpt": (lambda: Gpt(65, 256, 6, 6, 384), (TOKENS, 256), 65, 16, 8, dict(lr=3e-4)),
    "gpt2": (lambda: Gpt(50257, 256, 12, 12, 768), (TOKENS, 256), 50257, 4, 8, dict(lr=3e-4)),
    "dlrm": (lambda: Dlrm(26, 100000, 16), (CLICKS, 26, 100000), 2, 2048, 16, dict(lr=0.01)),
    "cnn": (cnn, (1, 28, 28), 10, 64, 64, dict(lr=0.01)),
    "cnn2": (cnn2, (3, 32, 32), 10, 64, 64, dict(lr=0.01)),
    "mlp": (mlp, (784,), 10, 128, 32, dict(lr=0.01)),
    "resnet18": (lambda: resnet((2, 2, 2, 2), False, 10, True), (3, 32, 32), 10, 64, 4,
                 dict(lr=0.1, momentum=0.9, weight_decay=5e-4)),
    "resnet50": (lambda: resnet((3, 4, 6, 3), True, 1000, False), (3, 224, 224), 1000, 8, 2,
                 dict(lr=0.1, momentum=0.9, weight_decay=1e-4)),
}


def layouts(model):
    """The memory formats worth trying, by the name of the number in the output."""
    found = {"samples_per_s": torch.contiguous_format}
    if len(MODELS[model][1]) == 3 and MODELS[model][1][0] != CLICKS:
        found["samples_per_s_channels_last"] = torch.channels_last
    return found


class Trainer:
    """A model, its optimiser and random rows; batch 0: as in the job. `wrap` makes of the model what is trained. bf16:
    what autocast takes for safe in it."""

    def __init__(self, model, layout, batch=0, wrap=lambda net: net, bf16=False):
        make, shape, classes, usual, batches, optimiser = MODELS[model]
        torch.manual_seed(1)
        self.batch, self.bf16 = batch or usual, bf16
        self.net = wrap(make().to(memory_format=layout))
        tokens, clicks = shape[0] == TOKENS, shape[0] == CLICKS
        self.opt = (torch.optim.AdamW if tokens else torch.optim.SGD)(self.net.parameters(), **optimiser)
        self.judge = F.binary_cross_entropy_with_logits if clicks else F.cross_entropy
        if tokens:
            self.x = [torch.randint(0, classes, (self.batch, shape[1])) for _ in range(batches)]
            self.y = [torch.randint(0, classes, (self.batch * shape[1],)) for _ in range(batches)]
            self.step_count = 0
            return
        if clicks:
            self.x = [(torch.randn(self.batch, 13), torch.randint(0, shape[2], (shape[1], self.batch)))
                      for _ in range(batches)]
            self.y = [torch.randint(0, 2, (self.batch,)).float() for _ in range(batches)]
            self.step_count = 0
            return
        self.x = [torch.randn(self.batch, *shape) for _ in range(batches)]
        if len(shape) == 3:
            self.x = [x.contiguous(memory_format=layout) for x in self.x]
        self.y = [torch.randint(0, classes, (self.batch,)) for _ in range(batches)]
        self.step_count = 0

    def step(self):
        i = self.step_count % len(self.x)
        self.step_count += 1
        self.opt.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16) if self.bf16 else contextlib.nullcontext():
            loss = self.judge(self.net(self.x[i]), self.y[i])
        loss.backward()
        self.opt.step()
