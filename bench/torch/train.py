#!/usr/bin/python3
"""How fast PyTorch trains the models of bench/*.yaml: samples a second in the best of many short windows.

    bench/torch/train.py MODEL [--threads N] [--seconds S] [--bf16 [--amx LIBRARY]]
        MODEL: cnn, cnn2, mlp, resnet18, resnet50, gpt, gpt2 or dlrm

One line of JSON. Same model, batch, loss and optimiser as in bench/MODEL.yaml, on random rows in memory.
PyTorch gets its best: images in both memory formats, each with its own number, gradients set to None, relus
that work in place. With one thread the clock is that of the process's CPU time, which other jobs on
the machine do not slow down; with more it is the wall's. Memory is what the process had at most. --bf16 is autocast;
for it the library, of amx.c beside this, is loaded before PyTorch.
"""
import argparse
import ctypes
import json
import os
import resource
import sys
import time

parser = argparse.ArgumentParser(description="PyTorch's training throughput on one of our benchmark models.")
parser.add_argument("model", choices=("cnn", "cnn2", "mlp", "resnet18", "resnet50", "gpt", "gpt2", "dlrm"))
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--seconds", type=float, default=5.0, help="measuring time after the warm-up")
parser.add_argument("--window", type=float, default=0.1, help="seconds of a window, of which the best counts")
parser.add_argument("--batch", type=int, default=0, help="default: as in the job")
parser.add_argument("--bf16", action="store_true", help="autocast to bfloat16")
parser.add_argument("--amx", default="", help="library that shows AMX to oneDNN where a virtual machine hides it")
opts = parser.parse_args()
for name in "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS":  # read when the libraries load
    os.environ[name] = str(opts.threads)

sys.dont_write_bytecode = True  # no files beside the sources
if opts.amx:
    ctypes.CDLL(opts.amx)  # before oneDNN is, which asks the CPU when it is loaded

import torch  # noqa: E402
import models  # noqa: E402

clock = time.process_time if opts.threads == 1 else time.perf_counter
WARM_S, WARM_STEPS, LONG_S, WINDOWS_LEAST = 0.5, 3, 2.0, 3


def warm(trainer):
    """Until caches are filled and libraries have chosen: one step, if it takes seconds. Gives the steps of a
    window."""
    since, took = time.perf_counter(), 0
    while True:
        warm_s = time.perf_counter() - since
        if warm_s > LONG_S or (warm_s > WARM_S and trainer.step_count >= WARM_STEPS):
            break
        begun = clock()
        trainer.step()
        took = clock() - begun
    return max(1, int(opts.window / took))


def measure(trainer, window_steps, seconds):
    rates, end = [], time.perf_counter() + seconds
    while len(rates) < WINDOWS_LEAST or time.perf_counter() < end:
        begun = clock()
        for _ in range(window_steps):
            trainer.step()
        rates.append(window_steps * trainer.batch / (clock() - begun))
    return rates


def main():
    torch.set_num_threads(opts.threads)
    torch.set_flush_denormal(True)
    told = {"name": opts.model, "threads": opts.threads, "version": torch.__version__}
    for name, layout in models.layouts(opts.model).items():
        trainer = models.Trainer(opts.model, layout, opts.batch, bf16=opts.bf16)
        told[name] = round(max(measure(trainer, warm(trainer), opts.seconds)), 2)
    told["memory_mb"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6)
    print(json.dumps(told))


main()
