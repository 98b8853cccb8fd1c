#!/usr/bin/python3
"""How fast PyTorch trains the models of bench/*.yaml with several processes: DistributedDataParallel over gloo.

    bench/torch/ddp.py MODEL [--procs 2] [--batch N] [--seconds S] [--window S]    samples/s of all processes
    bench/torch/ddp.py allreduce [--procs 2] [--mb 25 100] [--seconds S]           gloo's allreduce, GB/s

One line of JSON, from rank 0. One thread a process; --procs 1 is the model alone, without DDP. The clock is the
wall's, and the best window counts. As in train.py PyTorch gets its best, and of DDP too: gradients are views of its
buckets, and running statistics are not sent around in every step (a static graph gained nothing). gloo talks over the
loopback device.

GB/s: bytes of one vector, divided by the time of the slowest process; every round sums numbers that were just
written, and every sum is checked.
"""
import argparse
import json
import os
import sys
import tempfile
import time

parser = argparse.ArgumentParser(description="PyTorch's throughput with several processes.")
parser.add_argument("what", choices=("cnn", "cnn2", "mlp", "resnet18", "resnet50", "allreduce"))
parser.add_argument("--procs", type=int, default=2)
parser.add_argument("--batch", type=int, default=0, help="of each process; default: as in the job")
parser.add_argument("--seconds", type=float, default=3.0, help="measuring time of each format or size")
parser.add_argument("--window", type=float, default=1.0, help="seconds of a window, of which the best counts")
parser.add_argument("--mb", type=float, nargs="+", default=[25, 100], help="allreduce: sizes in MB of float32")
opts = parser.parse_args()
for variable in "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS":  # read when the libraries load
    os.environ[variable] = "1"
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

sys.dont_write_bytecode = True  # no files beside the sources

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402
import models  # noqa: E402

WARM_S, WARM_STEPS, WINDOWS_LEAST = 0.5, 3, 2
WARM_ROUNDS, ROUNDS_LEAST = 2, 5


def agreed(value):
    """Rank 0's value, for all: processes that disagree on how many steps are left wait for ever."""
    if opts.procs == 1:
        return value
    told = torch.tensor([float(value)], dtype=torch.float64)
    dist.broadcast(told, 0)
    return told.item()


def slowest(value):
    told = torch.tensor([float(value)], dtype=torch.float64)
    if opts.procs > 1:
        dist.all_reduce(told, dist.ReduceOp.MAX)
    return told.item()


# ---- Training ----

def distributed(net):
    if opts.procs == 1:
        return net
    return torch.nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True, broadcast_buffers=False)


def steps(trainer, count):
    """Seconds that so many steps take."""
    begun = time.perf_counter()
    for _ in range(count):
        trainer.step()
    return time.perf_counter() - begun


def samples_per_s(layout):
    trainer = models.Trainer(opts.what, layout, opts.batch, distributed)
    steps(trainer, WARM_STEPS)
    took = agreed(steps(trainer, 1))
    if took < WARM_S:
        more = int(agreed(WARM_S / took))
        took = agreed(steps(trainer, more)) / more
    count = max(1, int(opts.window / took))
    rates, end = [], time.perf_counter() + opts.seconds
    while len(rates) < WINDOWS_LEAST or agreed(time.perf_counter() < end):
        rates.append(opts.procs * trainer.batch * count / slowest(steps(trainer, count)))
    return max(rates)


# ---- Sums alone ----

def gb_per_s(rank, mb):
    """Small whole numbers, whose sums are exact."""
    n = int(mb * 1e6 / 4)
    pattern = (torch.arange(n) % 1024).float()
    x, best, done, end = torch.empty(n), 1e9, 0, time.perf_counter() + opts.seconds
    while done < WARM_ROUNDS + ROUNDS_LEAST or agreed(time.perf_counter() < end):
        torch.add(pattern, rank + done % 64, out=x)
        dist.barrier()
        begun = time.perf_counter()
        dist.all_reduce(x)
        took = slowest(time.perf_counter() - begun)
        if done >= WARM_ROUNDS:
            best = min(best, took)
        ranks = opts.procs * (opts.procs - 1) // 2
        if not torch.equal(x, pattern * opts.procs + (ranks + opts.procs * (done % 64))):
            raise SystemExit("ddp.py: gloo's sum of %g MB is wrong" % mb)
        done += 1
    return n * 4 / best / 1e9


def run(rank, meeting):
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    if opts.procs > 1:
        dist.init_process_group("gloo", init_method="file://" + meeting, rank=rank, world_size=opts.procs)
    told = {"name": opts.what, "procs": opts.procs, "version": torch.__version__}
    if opts.what == "allreduce":
        for mb in opts.mb:
            told["gb_per_s_%g" % mb] = round(gb_per_s(rank, mb), 3)
    else:
        for name, layout in models.layouts(opts.what).items():
            told[name] = round(samples_per_s(layout), 2)
    if rank == 0:
        print(json.dumps(told))
    if opts.procs > 1:
        dist.destroy_process_group()


def main():
    if opts.procs < 1 or (opts.what == "allreduce" and opts.procs < 2):
        parser.error("--procs takes a number from 1; an allreduce needs 2")
    with tempfile.TemporaryDirectory() as folder:
        meeting = os.path.join(folder, "meeting")
        if opts.procs == 1:
            run(0, meeting)
        else:
            mp.spawn(run, args=(meeting,), nprocs=opts.procs)


if __name__ == "__main__":
    main()
