#!/usr/bin/env python3
"""Trains by every asynchronous method, and prints the tables of docs/results.md.

    ci/results.py run DATA FOLDER     trains what FOLDER has no result of yet
    ci/results.py show FOLDER         prints the tables

DATA is the folder of the four MNIST files (three hidden layers of 1024, 5 epochs, batches of 40 of each
worker; minutes a run), or "digits" for the built-in ones (a layer of 128, 30 epochs, batches of 8; seconds).
FOLDER keeps each run in a file of its own, so that the work can be stopped and goes on.
"""

import argparse
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys

# One thread for each run, which keeps the memory that it gets.
ENVIRONMENT = os.environ | {
    "RAYON_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": "2000000000",
    "MALLOC_TRIM_THRESHOLD_": "4000000000",
}

SEEDS = [1, 2, 3]
WORKERS = [1, 4, 8, 16]
MNIST = ["--hidden", "1024,1024,1024", "--batch-size", "40", "--epochs", "5"]
DIGITS = ["--hidden", "128", "--batch-size", "8", "--epochs", "30"]

# Name in the tables, and arguments. AdaGrad on one node is a worker alone, which sends everything.
NODES = {
    "one node, momentum SGD": ["--method", "dense", "--momentum", "0.7", "--learning-rate", "0.1"],
    "one node, AdaGrad": ["--async", "asgd", "--rule", "adagrad"],
}
METHODS = {
    "asgd": ["--async", "asgd"],
    "asgd, AdaGrad": ["--async", "asgd", "--rule", "adagrad"],
    "gradient-dropping 90 %": ["--async", "gradient-dropping", "--density", "0.1"],
    "gradient-dropping 99 %": ["--async", "gradient-dropping", "--density", "0.01"],
    "gradient-dropping 99.9 %": ["--async", "gradient-dropping", "--density", "0.001"],
    "dgc 99 %": ["--async", "dgc", "--density", "0.01"],
    "dgs 99 %": ["--async", "dgs", "--density", "0.01"],
}
# The curves over time.
SLOW = ["asgd", "gradient-dropping 99 %", "dgc 99 %", "dgs 99 %"]


def runs():
    """Every run: name, workers, Gbit/s, seed, arguments; the most telling ones first."""
    for seed in SEEDS:
        yield "one node, momentum SGD", 1, 1, seed, NODES["one node, momentum SGD"]
        for name, workers in [("dgs 99 %", 4), ("dgs 99 %", 16), ("asgd", 16)]:
            yield name, workers, 1, seed, METHODS[name]
    for seed in SEEDS:
        for name, words in NODES.items():
            yield name, 1, 1, seed, words
        for workers in [4, 16, 8, 1]:
            for name, words in METHODS.items():
                yield name, workers, 1, seed, words
        if seed == SEEDS[0]:
            for name in SLOW:
                yield name, 8, 0.1, seed, METHODS[name]


def file_of(folder, name, workers, speed, seed):
    plain = name.replace(" ", "-").replace(",", "").replace("%", "").rstrip("-")
    return folder / f"{plain}_{workers}_{speed}_{seed}.json"


def uses_adagrad(words):
    return "adagrad" in words or "gradient-dropping" in words


def run(arguments):
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for name, workers, speed, seed, words in runs():
        file = file_of(arguments.folder, name, workers, speed, seed)
        if file.exists() or seed not in (arguments.seed or SEEDS):
            continue
        if arguments.until and datetime.datetime.now().strftime("%H:%M") >= arguments.until:
            return
        print(f"{name}, {workers} workers, {speed} Gbit/s, seed {seed}", file=sys.stderr, flush=True)
        part = file.with_suffix(".part")
        is_digits = arguments.data == "digits"
        network = DIGITS if is_digits else ["--data", arguments.data, *MNIST]
        command = [arguments.train, *network, *words]
        if not is_digits and workers > 4 and not uses_adagrad(words):
            # A push finds W - 1 others applied before it: with 0.1 the first steps of 16 workers diverge.
            command += ["--learning-rate", str(0.4 / workers)]
        command += ["--seed", str(seed), "--json", str(part)]
        if "--async" in words:
            command += ["--ranks", str(workers + 1), "--servers", "1", "--simulate", str(speed)]
        else:
            command += ["--ranks", "1"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=ENVIRONMENT)
        part.rename(file)


def show(arguments):
    found = {}
    for name, workers, speed, seed in sorted({run[:4] for run in runs()}):
        file = file_of(arguments.folder, name, workers, speed, seed)
        if file.exists():
            found.setdefault((name, workers, speed), []).append(json.loads(file.read_text())["runs"][0])

    def accuracy(name, workers):
        percent = [100 * run["test_accuracy"] for run in found.get((name, workers, 1), [])]
        if not percent:
            return "-"
        spread = f" ± {(max(percent) - min(percent)) / 2:.2f}" if len(percent) > 1 else ""
        return f"{statistics.mean(percent):.2f}{spread}"

    print("| method | " + " | ".join(str(workers) for workers in WORKERS) + " |")
    print("| --- |" + " --- |" * len(WORKERS))
    for name in [*NODES, *METHODS]:
        print(f"| {name} | " + " | ".join(accuracy(name, workers) for workers in WORKERS) + " |")
    print("\n| method | workers | staleness | bytes a step | runs |\n| --- | --- | --- | --- | --- |")
    for (name, workers, speed), results in sorted(found.items()):
        if speed == 1 and name in METHODS:
            lag = statistics.mean(run["staleness"] for run in results)
            count = statistics.mean(run["bytes_per_rank_step"] for run in results)
            print(f"| {name} | {workers} | {lag:.1f} | {count:,.0f} | {len(results)} |")
    print("\n| method | Gbit/s | seconds | share in communication | loss at shares of the seconds of asgd |")
    print("| --- | --- | --- | --- | --- |")
    for speed in [1, 0.1]:
        dense = found.get(("asgd", 8, speed))
        for name in SLOW:
            for result in found.get((name, 8, speed), [])[:1]:
                share = result["communication_seconds"] / result["seconds"]
                whole = (dense or [result])[0]["seconds"]
                curve = [(point["seconds"] / whole, point["loss"]) for point in result["curve"]]
                losses = " ".join(f"{time:.2f}: {loss:.3f}" for time, loss in curve[::3])
                print(f"| {name} | {speed} | {result['seconds'] / whole:.2f} | {share:.2f} | {losses} |")


def main():
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    actions = parser.add_subparsers(dest="action", required=True)
    running = actions.add_parser("run")
    running.add_argument("data")
    running.add_argument("folder", type=pathlib.Path)
    running.add_argument("--train", default="target/release/train")
    running.add_argument("--seed", type=int, action="append", help="of the runs to train; all without it")
    running.add_argument("--until", help="the time of day after which no run begins")
    actions.add_parser("show").add_argument("folder", type=pathlib.Path)
    arguments = parser.parse_args()
    (run if arguments.action == "run" else show)(arguments)


main()
