#!/usr/bin/env python3
"""Trains by every method, and prints the tables of docs/results.md.

    ci/results.py run DATA FOLDER         asynchronous training: what FOLDER has no result of yet
    ci/results.py show FOLDER             prints the tables
    ci/results.py run sync DATA FOLDER    the same of synchronous training, by 4 ranks
    ci/results.py show sync FOLDER
    ci/results.py run rules DATA FOLDER   gTop-k's put-back rules, by 4, 8 and 16 ranks
    ci/results.py show rules FOLDER

DATA is the folder of the four MNIST files, or "digits" for the built-in ones. Asynchronous: three hidden
layers of 1024, 5 epochs, batches of 40 of each worker (minutes a run); digits a layer of 128, 30 epochs,
batches of 8 (seconds). Synchronous: two layers of 512, 3 epochs, batches of 32; the same digits. Rules: a
layer of 128, 3 epochs, batches of 16, a density of 0.001; the same digits with 0.01.
FOLDER keeps each run in a file of its own, so that the work can be stopped and goes on.
"""

import argparse
import datetime
import functools
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

# Synchronous training. The algorithms of collectives are those for gigabit links, the same in each run.
SYNC_ENVIRONMENT = ENVIRONMENT | {"BREVITY_MACHINE": "inside:20,2,8;between:20,2,8"}
SYNC_RANKS = 4
SYNC_MNIST = ["--hidden", "512,512", "--batch-size", "32", "--epochs", "3"]
SYNC_METHODS = [
    "dense",
    "topk",
    "gtopk",
    "oktopk",
    "lowrank",
    "dgc",
    "signum",
    "one-bit",
    "two-bit",
    "eight-bit",
    "qsgd",
    "terngrad",
    "random-k",
    "random-block",
]
# What methods need on MNIST: a residual waits 100 steps for its block, and diverges with 0.2.
SYNC_WORDS = {"random-block": ["--learning-rate", "0.05"]}

# Put-back rules of gTop-k, and their methods.
RULES = {"conserving": "gtopk", "published": "gtopk-published", "merger keeps": "gtopk-merger-keeps"}
RULE_RANKS = [4, 8, 16]
RULE_MNIST = ["--hidden", "128", "--batch-size", "16", "--epochs", "3", "--density", "0.001"]

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


def sync_file(folder, method, seed):
    return folder / f"sync_{method}_{seed}.json"


def run_ranks(arguments, of_mnist, runs):
    """Trains by each method with so many ranks, for each seed, into its file."""
    arguments.folder.mkdir(parents=True, exist_ok=True)
    is_digits = arguments.data == "digits"
    network = DIGITS if is_digits else ["--data", arguments.data, *of_mnist]
    for seed in arguments.seed or SEEDS:
        for method, ranks, file_of in runs:
            file = file_of(seed)
            if file.exists():
                continue
            if arguments.until and datetime.datetime.now().strftime("%H:%M") >= arguments.until:
                return
            print(f"{method}, {ranks} ranks, seed {seed}", file=sys.stderr, flush=True)
            part = file.with_suffix(".part")
            words = [] if is_digits else SYNC_WORDS.get(method, [])
            command = [arguments.train, *network, *words, "--method", method, "--ranks", str(ranks)]
            command += ["--seed", str(seed), "--json", str(part)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=SYNC_ENVIRONMENT)
            part.rename(file)


def run_sync(arguments):
    file = functools.partial(sync_file, arguments.folder)
    runs = [(method, SYNC_RANKS, functools.partial(file, method)) for method in SYNC_METHODS]
    run_ranks(arguments, SYNC_MNIST, runs)


def rules_file(folder, method, ranks, seed):
    return folder / f"rules_{method}_{ranks}_{seed}.json"


def run_rules(arguments):
    file = functools.partial(rules_file, arguments.folder)
    pairs = [(method, ranks) for ranks in RULE_RANKS for method in RULES.values()]
    run_ranks(arguments, RULE_MNIST, [(*pair, functools.partial(file, *pair)) for pair in pairs])


def show_rules(arguments):
    print("| rule | " + " | ".join(f"{ranks} ranks" for ranks in RULE_RANKS) + " |")
    print("| --- |" + " --- |" * len(RULE_RANKS))
    for rule, method in RULES.items():
        cells = []
        for ranks in RULE_RANKS:
            files = [rules_file(arguments.folder, method, ranks, seed) for seed in SEEDS]
            runs = [json.loads(file.read_text())["runs"][0] for file in files if file.exists()]
            cells.append(accuracies(runs))
        print(f"| {rule} | " + " | ".join(cells) + " |")


def accuracies(runs):
    """The mean of the accuracies of runs, and half their range."""
    percent = [100 * run["test_accuracy"] for run in runs]
    if not percent:
        return "-"
    spread = f" ± {(max(percent) - min(percent)) / 2:.2f}" if len(percent) > 1 else ""
    return f"{statistics.mean(percent):.2f}{spread}"


def show_sync(arguments):
    found = {}
    for method in SYNC_METHODS:
        files = [sync_file(arguments.folder, method, seed) for seed in SEEDS]
        runs = [json.loads(file.read_text())["runs"][0] for file in files if file.exists()]
        if runs:
            found[method] = runs
    mean = lambda method, what: statistics.mean(run[what] for run in found[method])
    columns = ["method", "test accuracy", "bytes a step", "compression", "time over dense"]
    columns += ["in communication", "runs"]
    print("| " + " | ".join(columns) + " |")
    print("| --- |" + " --- |" * (len(columns) - 1))
    for method, runs in found.items():
        count, seconds = mean(method, "bytes_per_rank_step"), mean(method, "seconds")
        times = over = "-"
        if "dense" in found:
            times = f"{mean('dense', 'bytes_per_rank_step') / count:.1f}x"
            over = f"{seconds / mean('dense', 'seconds'):.2f}"
        share = mean(method, "communication_seconds") / seconds
        row = [accuracies(runs), f"{count:,.0f}", times, over, f"{share:.2f}", str(len(runs))]
        print(f"| {method} | " + " | ".join(row) + " |")


def show(arguments):
    found = {}
    for name, workers, speed, seed in sorted({run[:4] for run in runs()}):
        file = file_of(arguments.folder, name, workers, speed, seed)
        if file.exists():
            found.setdefault((name, workers, speed), []).append(json.loads(file.read_text())["runs"][0])

    def accuracy(name, workers):
        return accuracies(found.get((name, workers, 1), []))

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
    showing = actions.add_parser("show")
    for action in [running, showing]:
        action.add_argument("training", nargs="?", choices=["async", "sync", "rules"], default="async")
    running.add_argument("data")
    running.add_argument("folder", type=pathlib.Path)
    running.add_argument("--train", default="target/release/train")
    running.add_argument("--seed", type=int, action="append", help="of the runs to train; all without it")
    running.add_argument("--until", help="the time of day after which no run begins")
    showing.add_argument("folder", type=pathlib.Path)
    arguments = parser.parse_args()
    if getattr(arguments, "data", None) in ["async", "sync", "rules"]:
        parser.error("a folder is missing: run [async|sync|rules] DATA FOLDER")
    works = {"async": (run, show), "sync": (run_sync, show_sync), "rules": (run_rules, show_rules)}
    running, showing = works[arguments.training]
    (running if arguments.action == "run" else showing)(arguments)


main()
