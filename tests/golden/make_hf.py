#!/usr/bin/python3
"""A tiny GPT-2 as Hugging Face stores it, and what it says to two texts, for tests/train_hf_test.c.

    /usr/bin/python3 tests/golden/make_hf.py        (Debian: apt install python3-torch)

writes tests/golden/gpt2-tiny: config.json, model.safetensors (written here byte by byte, with the buffers
that older files have), and logits.txt, computed by PyTorch in float64 from the weights as the file has them:
dense layers are x @ W + b, W being (in, out). Weights and tokens follow from the formula of make_golden.py:

    tensor element i      value(its name, i) / 2, and 1 more where it is the scale of a norm
    token e of text s     bits("id", s * CONTEXT + e) % VOCAB

logits.txt has a line of VOCAB numbers for each position of each text.
"""
import json
import math
import os
import struct

import numpy as np
import torch

from make_golden import bits, value

VOCAB, POSITIONS, CONTEXT, WIDTH, HEADS, LAYERS, TEXTS = 13, 10, 7, 12, 3, 2, 2
EPS = 1e-5

CONFIG = {
    "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": VOCAB, "n_positions": POSITIONS,
    "n_ctx": POSITIONS, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_inner": None,
    "activation_function": "gelu_new", "layer_norm_epsilon": EPS, "tie_word_embeddings": True,
    "torch_dtype": "float32",
}


def shapes():
    out = {"transformer.wte.weight": (VOCAB, WIDTH), "transformer.wpe.weight": (POSITIONS, WIDTH)}
    for i in range(LAYERS):
        dense = {"attn.c_attn": (WIDTH, 3 * WIDTH), "attn.c_proj": (WIDTH, WIDTH),
                 "mlp.c_fc": (WIDTH, 4 * WIDTH), "mlp.c_proj": (4 * WIDTH, WIDTH)}
        for name, shape in dense.items():
            out[f"transformer.h.{i}.{name}.weight"] = shape
            out[f"transformer.h.{i}.{name}.bias"] = shape[1:]
        for name in ("ln_1", "ln_2"):
            out[f"transformer.h.{i}.{name}.weight"] = out[f"transformer.h.{i}.{name}.bias"] = (WIDTH,)
    out["transformer.ln_f.weight"] = out["transformer.ln_f.bias"] = (WIDTH,)
    return out


def weights():
    w = {}
    for name, shape in shapes().items():
        v = value(name, np.arange(int(np.prod(shape)))).reshape(shape) / 2
        w[name] = (v + 1 if ".ln_" in name and name.endswith("weight") else v).astype(np.float32)
    for i in range(LAYERS):
        w[f"transformer.h.{i}.attn.bias"] = np.tril(np.ones((1, 1, POSITIONS, POSITIONS), np.float32))
        w[f"transformer.h.{i}.attn.masked_bias"] = np.array(-1e4, np.float32)
    return w


def write_safetensors(path, tensors):
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name in sorted(tensors):
        raw = np.ascontiguousarray(tensors[name]).tobytes()
        header[name] = {"dtype": "F32", "shape": list(tensors[name].shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def logits(w, tokens):
    t = {name: torch.tensor(a, dtype=torch.float64) for name, a in w.items()}

    def at(name):
        return t["transformer." + name]

    def dense(x, name):
        return x @ at(name + ".weight") + at(name + ".bias")

    def norm(x, name):
        return torch.nn.functional.layer_norm(x, (WIDTH,), at(name + ".weight"), at(name + ".bias"), EPS)

    def gelu(x):
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

    def heads(x):
        return x.reshape(TEXTS, CONTEXT, HEADS, WIDTH // HEADS).transpose(1, 2)

    x = at("wte.weight")[tokens] + at("wpe.weight")[:CONTEXT]
    past = torch.tril(torch.ones(CONTEXT, CONTEXT, dtype=torch.bool))
    for i in range(LAYERS):
        q, k, v = (heads(part) for part in dense(norm(x, f"h.{i}.ln_1"), f"h.{i}.attn.c_attn").split(WIDTH, dim=2))
        scores = (q @ k.transpose(2, 3) / math.sqrt(WIDTH // HEADS)).masked_fill(~past, -math.inf)
        mixed = (scores.softmax(dim=3) @ v).transpose(1, 2).reshape(TEXTS, CONTEXT, WIDTH)
        x = x + dense(mixed, f"h.{i}.attn.c_proj")
        x = x + dense(gelu(dense(norm(x, f"h.{i}.ln_2"), f"h.{i}.mlp.c_fc")), f"h.{i}.mlp.c_proj")
    return norm(x, "ln_f") @ at("wte.weight").T


def main():
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "gpt2-tiny")
    os.makedirs(folder, exist_ok=True)
    w = weights()
    tokens = (bits("id", np.arange(TEXTS * CONTEXT)) % np.uint64(VOCAB)).astype(np.int64).reshape(TEXTS, CONTEXT)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(CONFIG, f, indent=2)
        f.write("\n")
    write_safetensors(os.path.join(folder, "model.safetensors"), w)
    with open(os.path.join(folder, "logits.txt"), "w") as f:
        for row in logits(w, torch.tensor(tokens)).reshape(-1, VOCAB).tolist():
            f.write(" ".join(f"{v:.9g}" for v in row) + "\n")


main()
