"""A rank that trains with torch's PowerSGD hook, as bench/compare sparse measures it.

Usage: RANK=R WORLD_SIZE=P GLOO_SOCKET_IFNAME=lo python3 power_sgd.py SOCKET STORE ROWS COLUMNS RANK

Connects to the Unix socket SOCKET, says "hello RANK", and then does what it is told, one line at a time:

    average BYTES ITERATIONS WARMUP

The model is one matrix of ROWS x COLUMNS, in one bucket of DistributedDataParallel over Gloo. An iteration is
a backward pass with the hook and one in no_sync(), each after a barrier. The answer is a line of JSON:
{"samples_us": [...], ...}, what the first has taken longer, each the mean of a batch. The ranks meet in the
file STORE. Gradients are checked before anything is timed: equal on all ranks, and of rank RANK.
"""
import contextlib
import json
import os
import socket
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

MOST_SAMPLES = 100
# The hook sums densely in the first steps; with error feedback and warm start it wants two at least.
DENSE_STEPS = 2
# Rows and columns of the corner whose rank is checked.
CORNER = 16

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


class Product(torch.nn.Module):
    """Its gradient is its input."""

    def __init__(self, rows, columns):
        super().__init__()
        self.matrix = torch.nn.Parameter(torch.zeros(rows, columns))

    def forward(self, factor):
        return (self.matrix * factor).sum()


class Steps:
    def __init__(self, rows, columns, approximation_rank):
        megabytes = 4 * rows * columns / 2**20
        self.model = DistributedDataParallel(Product(rows, columns), bucket_cap_mb=megabytes + 1)
        state = powerSGD_hook.PowerSGDState(
            process_group=None,
            matrix_approximation_rank=approximation_rank,
            start_powerSGD_iter=DENSE_STEPS,
        )
        self.model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        self.factor = torch.randn(rows, columns, generator=torch.Generator().manual_seed(rank))
        for _ in range(DENSE_STEPS + 1):
            self.step(True)
        self.check(approximation_rank)

    def step(self, communicates):
        """The nanoseconds of a backward pass."""
        self.model.zero_grad(set_to_none=True)
        with contextlib.nullcontext() if communicates else self.model.no_sync():
            loss = self.model(self.factor)
            dist.barrier()
            start = time.perf_counter_ns()
            loss.backward()
            return time.perf_counter_ns() - start

    def check(self, approximation_rank):
        gradient = self.model.module.matrix.grad
        largest, smallest = gradient.clone(), gradient.clone()
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        dist.all_reduce(smallest, dist.ReduceOp.MIN)
        if not torch.equal(largest, smallest) or not torch.isfinite(gradient).all():
            raise SystemExit(f"power_sgd.py: rank {rank}: the gradients of the ranks differ")
        corner = gradient[:CORNER, :CORNER].double()
        found = int(torch.linalg.matrix_rank(corner, rtol=1e-4))
        if found != min(approximation_rank, *corner.shape):
            raise SystemExit(f"power_sgd.py: rank {rank}: a gradient has rank {found}")

    def overhead(self):
        return self.step(True) - self.step(False)


def share(iterations, sample, samples):
    return iterations // samples + (sample < iterations % samples)


def obey(steps, what, size, iterations, warmup):
    if what != "average":
        raise SystemExit(f"power_sgd.py: there is no {what}")
    for _ in range(warmup):
        steps.overhead()
    samples = min(iterations, MOST_SAMPLES)
    batches = (share(iterations, sample, samples) for sample in range(samples))
    return [statistics.mean(steps.overhead() for _ in range(count)) / 1e3 for count in batches]


def main():
    conductor = socket.socket(socket.AF_UNIX)
    conductor.connect(sys.argv[1])
    torch.set_num_threads(1)
    store = "file://" + os.path.abspath(sys.argv[2])
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world)
    lines = conductor.makefile("rw")
    print(f"hello {rank}", file=lines, flush=True)
    steps = Steps(*map(int, sys.argv[3:]))
    for line in iter(lines.readline, ""):
        what, *numbers = line.split()
        samples = obey(steps, what, *map(int, numbers))
        middle, mean = statistics.median(samples), statistics.mean(samples)
        answer = {"samples_us": samples, "median_us": middle, "mean_us": mean}
        print(json.dumps(answer), file=lines, flush=True)


main()
