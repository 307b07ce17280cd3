"""Ops of about a millisecond each: what recording costs a program that computes. ``large_ops.py STEPS``.

Writes to ``$BENCH_REPORT``: seconds of the loop, peak resident memory, and the sum of the weights' bytes.
"""

import json
import os
import resource
import sys
import time
from pathlib import Path

import torch

torch.manual_seed(0)
weights = torch.randn(384, 384) / 20
begin = time.perf_counter()
for _ in range(int(sys.argv[1])):
    layers = [weights]
    for _ in range(20):
        layers.append(layers[-1] @ weights)
seconds = time.perf_counter() - begin

report = {
    "learn": seconds,
    "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    "weights": int(layers[-1].numpy().view("uint32").astype("uint64").sum()),
}
Path(os.environ["BENCH_REPORT"]).write_text(json.dumps(report))
