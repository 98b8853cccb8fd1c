#!/usr/bin/python3
"""How fast PyTorch trains the models of bench/*.yaml: samples a second in the best of many short windows.

    bench/torch/train.py MODEL [--threads N] [--seconds S]      MODEL: cnn, cnn2, mlp, resnet18 or resnet50

One line of JSON. Same model, batch, loss and optimiser as in bench/MODEL.yaml, on random rows in memory.
PyTorch gets its best: images in both memory formats, each with its own number, gradients set to None, relus
that work in place. With one thread the clock is that of the process's CPU time, which other jobs on
the machine do not slow down; with more it is the wall's.
"""
import argparse
import json
import os
import time

parser = argparse.ArgumentParser(description="PyTorch's training throughput on one of our benchmark models.")
parser.add_argument("model", choices=("cnn", "cnn2", "mlp", "resnet18", "resnet50"))
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--seconds", type=float, default=5.0, help="measuring time after the warm-up")
parser.add_argument("--window", type=float, default=0.1, help="seconds of a window, of which the best counts")
parser.add_argument("--batch", type=int, default=0, help="default: as in the job")
opts = parser.parse_args()
for name in "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS":  # read when the libraries load
    os.environ[name] = str(opts.threads)

import torch  # noqa: E402
import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402

clock = time.process_time if opts.threads == 1 else time.perf_counter
WARM_S, WINDOWS_LEAST = 0.5, 3


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


# ---- Measuring ----

class Trainer:
    def __init__(self, layout):
        make, shape, classes, batch, batches, optimiser = MODELS[opts.model]
        torch.manual_seed(1)
        self.batch = opts.batch or batch
        self.net = make().to(memory_format=layout)
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

    def warm(self):
        """Until caches are filled and libraries have chosen; gives the steps of a window."""
        end = time.perf_counter() + WARM_S
        while self.step_count < 3 or time.perf_counter() < end:
            begun = clock()
            self.step()
            took = clock() - begun
        self.window_steps = max(1, int(opts.window / took))

    def measure(self, seconds):
        rates, end = [], time.perf_counter() + seconds
        while len(rates) < WINDOWS_LEAST or time.perf_counter() < end:
            begun = clock()
            for _ in range(self.window_steps):
                self.step()
            rates.append(self.window_steps * self.batch / (clock() - begun))
        return rates


def main():
    torch.set_num_threads(opts.threads)
    torch.set_flush_denormal(True)
    layouts = {"samples_per_s": torch.contiguous_format}
    if len(MODELS[opts.model][1]) == 3:
        layouts["samples_per_s_channels_last"] = torch.channels_last
    told = {"name": opts.model, "threads": opts.threads, "version": torch.__version__}
    for name, layout in layouts.items():
        trainer = Trainer(layout)
        trainer.warm()
        told[name] = round(max(trainer.measure(opts.seconds)), 2)
    print(json.dumps(told))


main()
