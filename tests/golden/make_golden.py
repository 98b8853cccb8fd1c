#!/usr/bin/python3
"""Golden numbers for tests/model_golden_test.c and tests/train_golden_test.c, computed by PyTorch.

    /usr/bin/python3 tests/golden/make_golden.py [NAME...]      (Debian: apt install python3-torch)

writes tests/golden/NAME.txt. Inputs, labels and initial weights follow from a formula that both sides
compute exactly, so the files hold results alone:

    key(name)    = FNV-1a, 64 bits, of the name
    bits(name,i) = mix(key(name) + i * 0x9E3779B97F4A7C15), mix being the finaliser of splitmix64
    value(name,i)= ((bits >> 52) - 2048) / 2048             12 bits, in [-1, 1)

    x of sample s, element e          value("x", s * features + e)
    id e of sample s                  bits("id", s * ids + e) % rows
    label e of sample s               bits("label", s * labels + e) % classes
    weight (out, in...) element i     value(its name, i) * 2^-k, k the least with 6 * 4^k >= inputs of an output
    scale of a norm                   1/2 + value(its name, i) / 8
    shift of a batch norm             -32 if bits(its name, i) % 8 == 0, else 1
    other biases                      value(its name, i) / 8
    running mean, variance            0, 1

Step t (from 0) takes samples t * batch ... ; samples are numbered through. All is exact in float32.
The shifts keep the relus behind batch norms away from their kink: most let nearly everything through, one
channel in eight nothing. Near zero, rounding would decide which gradients pass, and deep networks then
differ by per cent between float32 and float64, in PyTorch as elsewhere.

A file is lines of words; '#' starts a comment. `input` is the shape of a sample's numbers; where it has tokens,
`ids` says how many and how many different ones there are. Losses are means over the batch:
    loss T L            of step T, each step on a batch of its own
    same T L            of step T, every step on the first batch
    eval L              of the first batch in evaluation mode after the steps of `same`
    grad NAME N NORM    gradient of the mean loss in the first step: N elements, 2-norm, then indented lines
                        with the elements at the places of the formula: i < N if N is at most `values`, else
                        bits(NAME + "#", i) % N for i < `values`
    stat NAME N NORM    a running statistic after the first step, likewise

The reference is float64. To say what float32 may cost, the same is computed in float32, and the largest
differences stand in the header (losses relative, tensors relative to norm + total gradient norm / 1000,
because some gradients are zero but for rounding): the tests' tolerances are chosen above them.
"""
import os
import sys

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

STEPS = 10
MOMENTUM = 0.9


# ---- The formula ----

def bits(name, index):
    key = 0xCBF29CE484222325
    for byte in name.encode():
        key = (key ^ byte) * 0x100000001B3 % 2**64
    with np.errstate(over="ignore"):
        z = np.uint64(key) + np.asarray(index, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def value(name, index):
    return ((bits(name, index) >> np.uint64(52)).astype(np.float64) - 2048) / 2048


def initial(name, shape):
    v = value(name, np.arange(int(np.prod(shape)))).reshape(shape)
    if name.endswith("running_mean"):
        return np.zeros(shape)
    if name.endswith("running_var"):
        return np.ones(shape)
    if len(shape) > 1:
        k = 0
        while 6 * 4**k < np.prod(shape[1:]):
            k += 1
        return v * 2.0**-k
    if name.endswith("weight"):
        return 0.5 + v / 8
    if is_norm(name):
        return np.where(bits(name, np.arange(shape[0])) % np.uint64(8) == 0, -32.0, 1.0)
    return v / 8


def is_norm(name):
    layer = name.rsplit(".", 2)
    return layer[-2].startswith("bn") or name.endswith("downsample.1.bias")


def places(name, n, most):
    return np.arange(n) if n <= most else (bits(name + "#", np.arange(most)) % np.uint64(n)).astype(np.int64)


# ---- The models, with the parameter names of the jobs ----

class MnistCnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 10, 5), nn.Conv2d(10, 20, 5)
        self.dense1, self.dense2 = nn.Linear(320, 50), nn.Linear(50, 10)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        return self.dense2(F.relu(self.dense1(x.flatten(1))))


class Block(nn.Module):
    """A residual block: two 3x3 convolutions, or 1x1, 3x3, 1x1 with four times the channels at its end."""

    def __init__(self, inputs, channels, stride, bottleneck):
        super().__init__()
        out = 4 * channels if bottleneck else channels
        plan = [(channels, 1, 1), (channels, 3, stride), (out, 1, 1)] if bottleneck else \
               [(channels, 3, stride), (out, 3, 1)]
        self.count, have = len(plan), inputs
        for i, (c, kernel, s) in enumerate(plan, 1):
            setattr(self, f"conv{i}", nn.Conv2d(have, c, kernel, s, kernel // 2, bias=False))
            setattr(self, f"bn{i}", nn.BatchNorm2d(c))
            have = c
        self.downsample = None
        if stride != 1 or inputs != out:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        y = x
        for i in range(1, self.count + 1):
            y = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(y))
            if i < self.count:
                y = F.relu(y)
        return F.relu(y + (self.downsample(x) if self.downsample else x))


class ResNet(nn.Module):
    def __init__(self, blocks, bottleneck, classes, cifar, width=64):
        super().__init__()
        self.cifar = cifar
        self.conv1 = nn.Conv2d(3, width, 3, 1, 1, bias=False) if cifar else nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        have = width
        for stage, count in enumerate(blocks):
            body = []
            for b in range(count):
                channels = width << stage
                body.append(Block(have, channels, 2 if stage and not b else 1, bottleneck))
                have = 4 * channels if bottleneck else channels
            setattr(self, f"layer{stage + 1}", nn.Sequential(*body))
        self.fc = nn.Linear(have, classes)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        if not self.cifar:
            x = F.max_pool2d(x, 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


class GptBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn, self.mlp = nn.Module(), nn.Module()
        self.attn.c_attn, self.attn.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp.c_fc, self.mlp.c_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        n, t, d = x.shape
        q, k, v = (z.view(n, t, self.heads, -1).transpose(1, 2) for z in self.attn.c_attn(self.ln_1(x)).split(d, 2))
        s = q @ k.transpose(2, 3) / (d // self.heads) ** 0.5
        s = s.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), float("-inf"))
        x = x + self.attn.c_proj((F.softmax(s, 3) @ v).transpose(1, 2).reshape(n, t, d))
        return x + self.mlp.c_proj(F.gelu(self.mlp.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, vocab, context, layers, heads, width):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.h = nn.ModuleList(GptBlock(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)

    def forward(self, ids):
        x = self.wte(ids) + self.wpe.weight
        for block in self.h:
            x = block(x)
        return F.linear(self.ln_f(x), self.wte.weight)


class Dlrm(nn.Module):
    """Tables of equal size, one behind the other; the dots of all pairs as torch's tril orders them."""

    def __init__(self, features, tables, rows, dim, bottom, top):
        super().__init__()
        self.rows = rows
        self.bottom = nn.ModuleList([nn.Linear(features, bottom), nn.Linear(bottom, dim)])
        self.embeddings = nn.EmbeddingBag(tables * rows, dim, mode="sum")
        self.top = nn.ModuleList([nn.Linear(dim + tables * (tables + 1) // 2, top), nn.Linear(top, 1)])

    def forward(self, batch):
        x, ids = batch
        n, tables = ids.shape
        x = F.relu(self.bottom[1](F.relu(self.bottom[0](x))))
        e = self.embeddings((ids + self.rows * torch.arange(tables)).flatten(), torch.arange(n * tables))
        t = torch.cat([x[:, None], e.view(n, tables, -1)], 1)
        i, j = torch.tril_indices(tables + 1, tables + 1, -1)
        z = torch.bmm(t, t.transpose(1, 2))[:, i, j]
        z = self.top[1](F.relu(self.top[0](torch.cat([x, z], 1))))
        return torch.cat([torch.zeros_like(z), z], 1)  # cross-entropy of the two is that of one logit


class Ids:
    """An input of ids below `rows`, in place of a shape."""

    def __init__(self, count, rows, labels):
        self.count, self.rows, self.labels = count, rows, labels


class Clicks:
    """Numbers, and ids below `rows`."""

    def __init__(self, features, count, rows):
        self.features, self.count, self.rows = features, count, rows


class LstmModel(nn.Module):
    """A language model: of each position the token behind it."""

    def __init__(self, rows):
        super().__init__()
        self.embedding1, self.lstm1 = nn.Embedding(rows, 16), nn.LSTM(16, 24, batch_first=True)
        self.dense1 = nn.Linear(24, rows)

    def forward(self, ids):
        return self.dense1(self.lstm1(self.embedding1(ids))[0])


class GruClassifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru1, self.gru2 = nn.GRU(9, 20, batch_first=True), nn.GRU(20, 17, batch_first=True)
        self.dense1 = nn.Linear(17, 5)

    def forward(self, x):
        return self.dense1(self.gru2(self.gru1(x)[0])[0][:, -1])


def ours(name):
    """PyTorch counts the layers within one of its recurrent modules; a job has a layer for each."""
    return name.removesuffix("_l0")


class SmallUNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(2, 6, 3, padding=1), nn.Conv2d(6, 40, 3, padding=1)
        self.up1 = nn.ConvTranspose2d(40, 6, 3, 2, 1, 1)
        self.conv3 = nn.Conv2d(52, 5, 3, padding=1)
        self.up2 = nn.ConvTranspose2d(5, 4, 2)

    def forward(self, x):
        fine = torch.tanh(self.conv1(x))
        coarse = torch.tanh(self.conv2(F.max_pool2d(fine, 2)))
        near = F.interpolate(coarse, scale_factor=2, mode="nearest")
        x = torch.tanh(self.conv3(torch.cat([self.up1(coarse), near, fine], 1)))
        x = F.interpolate(x, scale_factor=(2, 3), mode="bilinear", align_corners=False)
        return self.up2(x)


# name: model, input, classes, batch, learning rate, values told of a gradient and of a statistic
GOLDENS = {
    "dlrm": (lambda: Dlrm(13, 7, 11, 10, 20, 18), Clicks(13, 7, 11), 2, 32, 0.02, 64, 0),
    "gpt": (lambda: Gpt(19, 40, 2, 2, 24), Ids(40, 19, 40), 19, 3, 0.02, 64, 0),
    "mnist-cnn": (MnistCnn, (1, 28, 28), 10, 64, 0.02, 64, 0),
    "resnet18": (lambda: ResNet((2, 2, 2, 2), False, 10, True), (3, 32, 32), 10, 4, 0.002, 64, 16),
    "unet-small": (SmallUNet, (2, 8, 8), 4, 16, 0.2, 64, 0),
    "resnet50-narrow": (lambda: ResNet((3, 4, 6, 3), True, 10, False, 8), (3, 64, 64), 10, 16, 0.002, 16, 8),
    "lstm-model": (lambda: LstmModel(27), Ids(12, 27, 12), 27, 8, 1.0, 64, 0),
    "gru-classifier": (GruClassifier, (10, 9), 5, 16, 0.05, 64, 0),
}


# The size of what it judges, if that is each pixel of an image.
PIXELS = {"unet-small": (17, 25)}


# ---- Training ----

def fresh(make, dtype):
    net = make().to(dtype)
    with torch.no_grad():
        for name, t in net.state_dict().items():
            if t.dtype == dtype:
                t.copy_(torch.from_numpy(initial(ours(name), tuple(t.shape))))
    return net


def batch(step, size, shape, classes, dtype, pixels=()):
    if isinstance(shape, Ids):
        x = bits("id", np.arange(step * size * shape.count, (step + 1) * size * shape.count)) % np.uint64(shape.rows)
        y = bits("label", np.arange(step * size * shape.labels, (step + 1) * size * shape.labels)) % np.uint64(classes)
        return [torch.from_numpy(v.astype(np.int64).reshape(size, -1)) for v in (x, y)]
    if isinstance(shape, Clicks):
        x, y = batch(step, size, (shape.features,), classes, dtype)
        return (x, batch(step, size, Ids(shape.count, shape.rows, 1), classes, dtype)[0]), y
    features = int(np.prod(shape))
    x = value("x", np.arange(step * size * features, (step + 1) * size * features)).reshape(size, *shape)
    each = int(np.prod(pixels, dtype=np.int64))
    y = (bits("label", np.arange(step * size * each, (step + 1) * size * each)) % np.uint64(classes)).astype(np.int64)
    return torch.from_numpy(x).to(dtype), torch.from_numpy(y.reshape(size, *pixels))


def judge(out, y):
    """Classes are the last axis, but of images they are the second."""
    return F.cross_entropy(out, y) if out.dim() == 4 else F.cross_entropy(out.flatten(0, -2), y.flatten())


def train(name, dtype, same):
    """Losses, evaluation loss after all steps, gradients of the first step and statistics after it."""
    make, shape, classes, size, lr, _, _ = GOLDENS[name]
    net = fresh(make, dtype)
    opt = torch.optim.SGD(net.parameters(), lr=lr, momentum=MOMENTUM)
    losses, grads, stats = [], {}, {}
    for t in range(STEPS):
        x, y = batch(0 if same else t, size, shape, classes, dtype, PIXELS.get(name, ()))
        opt.zero_grad(set_to_none=True)
        loss = judge(net(x), y)
        loss.backward()
        losses.append(loss.item())
        if t == 0:
            grads = {ours(k): p.grad.double().numpy().ravel().copy() for k, p in net.named_parameters()}
            stats = {k: b.double().numpy().copy() for k, b in net.named_buffers() if b.dtype == dtype}
        opt.step()
    net.eval()
    with torch.no_grad():
        x, y = batch(0, size, shape, classes, dtype, PIXELS.get(name, ()))
        final = judge(net(x), y).item()
    return losses, final, grads, stats


def off(a, b):
    return max(abs(x - y) / abs(x) for x, y in zip(a, b))


def off_norm(a, b):
    least = np.sqrt(sum(np.sum(v**2) for v in a.values())) / 1000
    return max((np.linalg.norm(a[k] - b[k]) / (np.linalg.norm(a[k]) + least), k) for k in a)


def write(name, out):
    _, shape, classes, size, lr, grad_values, stat_values = GOLDENS[name]
    losses, _, grads, stats = train(name, torch.float64, False)
    same, final, _, _ = train(name, torch.float64, True)
    losses32, _, grads32, stats32 = train(name, torch.float32, False)
    same32, final32, _, _ = train(name, torch.float32, True)
    say = lambda *words: print(*words, file=out)
    say(f"# {name}: made by make_golden.py, which explains it; PyTorch {torch.__version__}, float64")
    say(f"# float32 in PyTorch is off by: losses {off(losses, losses32):.1e}, same {off(same, same32):.1e}, "
        f"eval {off([final], [final32]):.1e},")
    say("# gradients %.1e (%s)%s" %
        (*off_norm(grads, grads32), ", statistics %.1e (%s)" % off_norm(stats, stats32) if stats else ""))
    if isinstance(shape, Ids):
        say("ids", shape.count, shape.rows)
        say("labels", shape.labels)
    elif isinstance(shape, Clicks):
        say("input", shape.features, 1, 1)
        say("ids", shape.count, shape.rows)
    else:
        say("input", *shape)
    say("classes", classes)
    say("batch", size)
    if name in PIXELS:
        say("labels", int(np.prod(PIXELS[name])))
    say("lr", lr)
    say("momentum", MOMENTUM)
    for word, list_ in ("loss", losses), ("same", same):
        for t, v in enumerate(list_):
            say(word, t, f"{v:.10f}")
    say("eval", f"{final:.10f}")
    for word, tensors, most in ("grad", grads, grad_values), ("stat", stats, stat_values):
        if tensors:
            say("values", most)
        for key, v in tensors.items():
            say(word, key, v.size, f"{np.linalg.norm(v):.8e}")
            told = v[places(key, v.size, most)]
            for i in range(0, len(told), 8):
                say("", *(f"{x:.6e}" for x in told[i:i + 8]))


if __name__ == "__main__":
    here = os.path.dirname(os.path.abspath(__file__))
    for golden in sys.argv[1:] or GOLDENS:
        with open(os.path.join(here, golden + ".txt"), "w") as f:
            write(golden, f)
