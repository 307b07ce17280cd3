"""Ops of about a millisecond each: what recording costs a program that computes. ``large_ops.py STEPS``.

Writes to ``$BENCH_REPORT``: seconds of the loop, peak resident memory, and the sum of the weights' bytes.
"""

import sys
import time

import torch
from reporting import peak_mib, sum_of, write_report

torch.manual_seed(0)
weights = torch.randn(384, 384) / 20
begin = time.perf_counter()
for _ in range(int(sys.argv[1])):
    layers = [weights]
    for _ in range(20):
        layers.append(layers[-1] @ weights)
seconds = time.perf_counter() - begin
write_report(learn=seconds, peak_mib=peak_mib(), weights=sum_of(layers[-1:]))
