"""A rank of torch's Gloo, as bench/compare collectives measures it.

Usage: RANK=R WORLD_SIZE=P GLOO_SOCKET_IFNAME=lo python3 gloo.py SOCKET STORE

Connects to the Unix socket SOCKET, says "hello RANK", and then does what it is told, one line at a time:

    WHAT BYTES ITERATIONS WARMUP

WHAT is a collective, and BYTES what bench/src/collective/mod.rs calls its bytes. The answer is a line of
JSON: {"samples_us": [...], ...}, times of one call, each the mean of a batch. Results are checked before
anything is timed; a barrier follows each call, outside the clock. The ranks meet in the file STORE.
"""
import json
import os
import socket
import statistics
import sys
import time

import torch
import torch.distributed as dist

ELEMENT = 4
MOST_SAMPLES = 100
ROOT = 0

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def vector(sender, count):
    return (torch.arange(count) % 1000 + sender).to(torch.float32)


def everybodys(count):
    return torch.cat([vector(sender, count) for sender in range(world)])


def parts(tensor):
    return list(tensor.chunk(world)) if tensor.numel() else [tensor] * world


class Barrier:
    def __init__(self, count):
        self.output = self.expected = torch.empty(0)

    def run(self):
        dist.barrier()


class Broadcast:
    def __init__(self, count):
        self.expected = vector(ROOT, count)
        self.output = self.expected.clone() if rank == ROOT else torch.zeros(count)

    def run(self):
        dist.broadcast(self.output, ROOT)


class InPlaceSum:
    """After its check the vectors are zeros, which stay zeros in every sum."""

    def __init__(self, count):
        self.output = vector(rank, count)
        self.expected = vector(0, count) * world + world * (world - 1) // 2

    def checked(self):
        self.output.zero_()


class AllReduce(InPlaceSum):
    def run(self):
        dist.all_reduce(self.output)


class Reduce(InPlaceSum):
    def __init__(self, count):
        super().__init__(count)
        if rank != ROOT:
            self.expected = None

    def run(self):
        dist.reduce(self.output, ROOT)


class AllGather:
    def __init__(self, count):
        self.input, self.expected = vector(rank, count), everybodys(count)
        self.output = torch.zeros(world * count)
        self.places = parts(self.output)

    def run(self):
        dist.all_gather(self.places, self.input)


class Gather(AllGather):
    def __init__(self, count):
        super().__init__(count)
        if rank != ROOT:
            self.places = self.expected = None

    def run(self):
        dist.gather(self.input, self.places, ROOT)


class Scatter:
    def __init__(self, count):
        self.output, self.expected = torch.zeros(count), vector(rank, count)
        self.input = everybodys(count) if rank == ROOT else None
        self.places = parts(self.input) if rank == ROOT else None

    def run(self):
        dist.scatter(self.output, self.places, ROOT)


class AllToAll:
    """Rank r sends vector r * P + p to rank p."""

    def __init__(self, count):
        self.input = torch.cat([vector(rank * world + peer, count) for peer in range(world)])
        self.expected = torch.cat([vector(peer * world + rank, count) for peer in range(world)])
        self.output = torch.zeros(world * count)

    def run(self):
        dist.all_to_all_single(self.output, self.input)


COLLECTIVES = {
    "barrier": Barrier,
    "broadcast": Broadcast,
    "reduce": Reduce,
    "allreduce": AllReduce,
    "allgather": AllGather,
    "gather": Gather,
    "scatter": Scatter,
    "alltoall": AllToAll,
}


def share(iterations, sample, samples):
    return iterations // samples + (sample < iterations % samples)


def times(call, iterations):
    samples = min(iterations, MOST_SAMPLES)
    for sample in range(samples):
        calls, taken = share(iterations, sample, samples), 0
        for _ in range(calls):
            start = time.perf_counter_ns()
            call()
            taken += time.perf_counter_ns() - start
            dist.barrier()
        yield taken / calls / 1e3


def obey(what, size, iterations, warmup):
    call = COLLECTIVES[what](size // ELEMENT)
    dist.barrier()
    call.run()
    if call.expected is not None and not torch.equal(call.output, call.expected):
        raise SystemExit(f"gloo.py: rank {rank}: {what} of {size} bytes is wrong")
    getattr(call, "checked", lambda: None)()
    for _ in range(warmup):
        call.run()
        dist.barrier()
    return list(times(call.run, iterations))


def main():
    conductor = socket.socket(socket.AF_UNIX)
    conductor.connect(sys.argv[1])
    torch.set_num_threads(1)
    store = "file://" + os.path.abspath(sys.argv[2])
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world)
    lines = conductor.makefile("rw")
    print(f"hello {rank}", file=lines, flush=True)
    for line in iter(lines.readline, ""):
        what, *numbers = line.split()
        samples = obey(what, *map(int, numbers))
        middle, mean = statistics.median(samples), statistics.mean(samples)
        answer = {"samples_us": samples, "median_us": middle, "mean_us": mean}
        print(json.dumps(answer), file=lines, flush=True)


main()
