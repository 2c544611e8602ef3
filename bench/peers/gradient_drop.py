"""Gradient dropping by numpy.argpartition: adds, selects, takes out.

python3 gradient_drop.py N K: reads N float32 of a residual and N of a gradient, then a line for each
turn, and prints the milliseconds it took, how many entries were selected, and the smallest magnitude
among them.
"""

import sys
import time

import numpy

n, k = int(sys.argv[1]), int(sys.argv[2])
orders = sys.stdin.buffer
start = numpy.frombuffer(orders.read(4 * n), dtype="<f4")
gradient = numpy.frombuffer(orders.read(4 * n), dtype="<f4")
residual, magnitudes = start.copy(), start.copy()


def drop():
    numpy.add(residual, gradient, out=residual)
    numpy.abs(residual, out=magnitudes)
    indices = numpy.argpartition(magnitudes, n - k)[n - k :]
    indices.sort()
    values = residual[indices]
    residual[indices] = 0
    return values


while orders.readline():
    residual[:] = start
    before = time.perf_counter()
    values = drop()
    took = time.perf_counter() - before
    print(1e3 * took, len(values), repr(float(numpy.abs(values).min())), flush=True)
