"""The models of bench/*.yaml in PyTorch, and a step of their training: for train.py and ddp.py beside it.

Set the environment that PyTorch's libraries read when they load (threads) before this is imported.
"""
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


# model, input, classes, batch, batches in memory, optimiser
MODELS = {
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
    if len(MODELS[model][1]) == 3:
        found["samples_per_s_channels_last"] = torch.channels_last
    return found


class Trainer:
    """A model, its optimiser and random rows; batch 0: as in the job. `wrap` makes of the model what is trained."""

    def __init__(self, model, layout, batch=0, wrap=lambda net: net):
        make, shape, classes, usual, batches, optimiser = MODELS[model]
        torch.manual_seed(1)
        self.batch = batch or usual
        self.net = wrap(make().to(memory_format=layout))
        self.opt = torch.optim.SGD(self.net.parameters(), **optimiser)
        self.x = [torch.randn(self.batch, *shape) for _ in range(batches)]
        if len(shape) == 3:
            self.x = [x.contiguous(memory_format=layout) for x in self.x]
        self.y = [torch.randint(0, classes, (self.batch,)) for _ in range(batches)]
        self.step_count = 0

    def step(self):
        i = self.step_count % len(self.x)
        self.step_count += 1
        self.opt.zero_grad(set_to_none=True)
        F.cross_entropy(self.net(self.x[i]), self.y[i]).backward()
        self.opt.step()
